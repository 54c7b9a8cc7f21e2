"""Signs of life for the grants of a process, and which of them are gone."""

from collections.abc import Sequence
from datetime import datetime

from holdfast.kernel import lease as leases
from holdfast.kernel.errors import Corrupt
from holdfast.primitives.locks.grant import Grant
from holdfast.primitives.locks.record import Hold
from holdfast.primitives.locks.room import Room
from holdfast.primitives.locks.table import Table
from holdfast.primitives.locks.turns import Turns


def renew_all(room: Room, grants: Sequence[Grant]) -> list[Grant]:
    """Renew the leases that are due, of grants without a time to live; return those, of all, that are gone.

    Looks first: mostly nothing is due, and a look takes no turn from anybody.
    """
    lease_s = room.terms.lease_s

    def renew(turns: Turns) -> list[Grant]:
        due = [(grant, hold) for grant in grants if (hold := _due(turns.table, grant, turns.now, lease_s)) is not None]
        for _, hold in due:
            turns.renew(hold, None)
        return [grant for grant, _ in due]

    now = room.store.now()
    gone, due = room.read(
        lambda table: (
            [grant for grant in grants if _is_gone(table, grant)],
            any(_due(table, grant, now, lease_s) for grant in grants),
        )
    )
    if due:
        for grant in room.transact(renew):
            grant.untouched = False
    return gone


def _is_gone(table: Table, grant: Grant) -> bool:
    """Was a grant taken away, or one of those that it was entered by? What its own job let go of by name leaves the rest of it
    held. A damaged record proves nothing."""
    try:
        if grant.taken and table.find_hold(grant.id, grant.taken) is None:
            return True
        entered = {name: token for name, token in grant.tokens.items() if name not in grant.taken}
        return any(all(hold.token != token for hold in table.lock(name).holds) for name, token in entered.items())
    except Corrupt:
        return False


def _due(table: Table, grant: Grant, now: datetime, lease_s: float) -> Hold | None:
    """The hold of a grant that needs a sign of life."""
    if grant.ttl_s is not None or not grant.taken:
        return None
    try:
        hold = table.find_hold(grant.id, grant.taken)
    except Corrupt:
        return None
    return hold if hold is not None and leases.due(hold.lease, now, lease_s) else None
