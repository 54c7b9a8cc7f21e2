"""The registry as its callers see it: plain dicts, in the form of its files, with the dead marked."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from holdfast.domains.network.claims import Claims
from holdfast.domains.network.record import HostLease, RunLease
from holdfast.kernel import clock
from holdfast.kernel.store import Row
from holdfast.primitives.holds import Verdicts

Info = dict[str, Any]


def leases_shown(claims: Claims, rows: Iterable[Row[Any]], verdicts: Verdicts, now: datetime, *names: str) -> dict[str, Info]:
    """Leases by their key, with these fields of their record. `dead` marks one that does not count any more, and that the next
    change of the same record sweeps: its process is dead, or its time is over."""
    found = {}
    for row in rows:
        counted = {lease.by for lease in claims.living(row.record.leases, verdicts, now)}
        shown = [{**_shown(claims.ends(lease)), "dead": lease.by not in counted} for lease in row.record.leases]
        found[row.key] = {**row.record.more, **{name: getattr(row.record, name) for name in names}, "leases": shown}
    return found


def _shown(lease: RunLease) -> Info:
    special = {"job_type": lease.job_type, "dscp": lease.dscp} if isinstance(lease, HostLease) else {}
    ends = clock.render(lease.lease.expires_at) if lease.lease.explicit else None
    facts = {"run_id": lease.by, "pid": lease.pid, **special, "allocated_at": lease.allocated_at, "expires_at": ends}
    return {**lease.more, **facts}
