"""Single records: those that this program cannot read, and pending jobs that no worker can ever pick."""

import math
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from holdfast.app import Holdfast
from holdfast.doctor.finding import Finding, fail, failed, ok
from holdfast.domains.jobs.bounds import no_room, too_large
from holdfast.domains.jobs.record import Job, JobStatus
from holdfast.domains.jobs.steps import ended
from holdfast.kernel.errors import Corrupt, RecordInvalid, SchemaTooNew
from holdfast.kernel.limits import DOCTOR_CHECK_S
from holdfast.kernel.space import Space
from holdfast.kernel.store import Damage, ReadTx, Row
from holdfast.kernel.wording import counted
from holdfast.spaces import all_spaces

_PAGE = 100
_LOOK_S = 0.5 * DOCTOR_CHECK_S
"""How long records are read; `holdfast store check` reads all of them, however long that takes."""


def queues(hf: Holdfast) -> list[Finding]:
    """Pending jobs that every pick passes over."""
    damaged: Damage = []
    try:
        large = hf.jobs.unpickable(damaged=damaged)
    except SchemaTooNew:
        # Of the whole space, which the check of schemas has told.
        return []
    found = [*(_without_room(job) for job in large[:1]), *(_unreadable(error) for error in damaged[:1])]
    if not found:
        return [ok("queues", "every pending job can be picked")]
    number = len(large) + len(damaged)
    more = [] if number == 1 else [f"{counted(number, 'job')} can never be picked; `holdfast store check` names damaged ones"]
    return [*found, *(fail("queues", says, "see to each of them", RecordInvalid.code) for says in more)]


def _without_room(job: Job) -> Finding:
    cancelled = ended(job, JobStatus.CANCELLED, job.updated_at)
    way_out = f"holdfast store remove jobs {job.job_id}" if too_large(cancelled) else f"holdfast jobs cancel {job.job_id}"
    says = f"queue {job.agent_session}: job {job.job_id} can never be picked, and each pick passes over it"
    return fail("queues", says, f"{no_room(job)}; then `{way_out}`", RecordInvalid.code)


def _unreadable(error: Corrupt) -> Finding:
    found = failed("queues", error)
    says = f"job {error.fields.get('key')} waits in a queue and can never be picked: {found.says}"
    return fail("queues", says, found.mend, found.code)


def records(hf: Holdfast) -> list[Finding]:
    """Records that are damaged, or that a newer program wrote. Agents have a check of their own."""
    spaces = [space for space in all_spaces() if not space.volatile and space.name != "agents"]
    until_s = time.monotonic() + _LOOK_S
    damaged: dict[str, Corrupt] = {}
    number = 0
    for keys, unread in (page for space in spaces for page in _pages(hf, space)):
        number += keys
        damaged |= {error.message: error for error in unread}
        if time.monotonic() >= until_s:
            break
    else:
        until_s = math.inf
    if damaged:
        found = failed("records", next(iter(damaged.values())))
        many = f"{counted(len(damaged), 'record')} cannot be read, such as this one: " if len(damaged) > 1 else ""
        return [fail("records", f"{many}{found.says}", found.mend, found.code)]
    if until_s < math.inf:
        return [ok("records", f"the first {counted(number, 'record')} can be read; `holdfast store check` looks at all")]
    return [ok("records", f"{counted(number, 'record')} can be read, which are all")]


def _pages(hf: Holdfast, space: Space[Any]) -> Iterator[tuple[int, Damage]]:
    """How many records each page of a space has, and those of them that cannot be read."""
    last = ""
    while True:
        damaged: Damage = []
        # From the last one on, which is passed over: not every store can say what comes just behind a key.
        try:
            found = hf.store.read(partial(_page, space=space, start=last, damaged=damaged), scope=[space])
        except SchemaTooNew:
            # Of the whole space, which the check of schemas has told.
            return
        keys = {row.key for row in found} | {str(error.fields.get("key")) for error in damaged}
        keys.discard(last)
        yield len(keys), damaged
        if len(keys) < _PAGE:
            return
        last = max(keys)


def _page(tx: ReadTx, *, space: Space[Any], start: str, damaged: Damage) -> list[Row[Any]]:
    damaged.clear()
    return tx.range(space, start=start, limit=_PAGE + 1, damaged=damaged)
