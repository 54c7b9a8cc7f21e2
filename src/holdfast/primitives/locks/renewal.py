"""Signs of life for the grants of a process, and which of them are gone."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from holdfast.kernel import lease as leases
from holdfast.kernel.errors import Corrupt
from holdfast.kernel.holder import Holder, Liveness, probe
from holdfast.primitives.locks.grant import Grant
from holdfast.primitives.locks.records import Hold
from holdfast.primitives.locks.table import Table
from holdfast.primitives.locks.transaction import Room, Turns


def renew_all(room: Room, grants: Sequence[Grant], keeps: Callable[[Grant], bool]) -> list[Grant]:
    """Renew the leases that are due, of grants without a time to live; return those, of all, that
    are gone.

    A process that was given a grant and died gets no sign of life: another machine could not see
    that it is gone.

    One of which a part was taken away is lost for its holder, who is told if `keeps` says that it
    still keeps it; what is left is renewed all the same, since nobody has let go of it. Looks
    first: mostly nothing is due, and a look takes no turn from anybody.
    """
    lease_s = room.terms.lease_s

    def renew(turns: Turns) -> list[Grant]:
        due = [
            (grant, hold)
            for grant in grants
            if (hold := _due(turns.table, grant, turns.now, lease_s)) is not None
        ]
        living = [(grant, hold) for grant, hold in due if hold.process in alive]
        for _, hold in living:
            turns.renew(hold, None)
        return [grant for grant, _ in living]

    now = room.store.now()
    tokens = {grant.id: grant.tokens for grant in grants}
    gone, due = room.read(
        lambda table: (
            [
                (grant, _is_left(table, grant))
                for grant in grants
                if _lacks_some(table, tokens[grant.id])
            ],
            {
                hold.process
                for grant in grants
                if (hold := _due(table, grant, now, lease_s)) is not None
            },
        )
    )
    for grant, left in gone:
        # What its holder is letting go of at this moment, or just has, was not taken away.
        if left and keeps(grant) and grant.tokens == tokens[grant.id]:
            grant.lose()
    alive = {process for process in due if process is not None and _may_live(room, process)}
    if alive:
        for grant in room.transact(renew):
            grant.untouched = False
    return [grant for grant, left in gone if not left]


def _may_live(room: Room, process: Holder) -> bool:
    return probe(process, room.processes, embedded=room.store.embedded) is not Liveness.DEAD


def _lacks_some(table: Table, tokens: Mapping[str, int]) -> bool:
    """Was some of a grant taken away? A damaged record proves nothing."""
    try:
        return any(
            all(hold.token != token for hold in table.lock(name).holds)
            for name, token in tokens.items()
        )
    except Corrupt:
        return False


def _is_left(table: Table, grant: Grant) -> bool:
    """Is something of what a grant took still there? Damage proves nothing here either."""
    try:
        return table.find_hold(grant.id, grant.taken) is not None
    except Corrupt:
        return True


def _due(table: Table, grant: Grant, now: datetime, lease_s: float) -> Hold | None:
    """The hold of a grant that needs a sign of life."""
    if grant.ttl_s is not None or not grant.taken:
        return None
    try:
        hold = table.find_hold(grant.id, grant.taken)
    except Corrupt:
        return None
    return hold if hold is not None and leases.due(hold.lease, now, lease_s) else None
