"""Single records: those that this program cannot read, and pending jobs that no worker can ever
pick.

What the dead left behind and nobody has reaped; and what is yet to be told.
"""

import math
import os
import time
from collections.abc import Iterator
from functools import partial
from shlex import quote
from typing import Any

from holdfast.domains.agents.cleanup import REMOVED_FOR
from holdfast.domains.jobs.draft import no_room, too_large
from holdfast.domains.jobs.records import Job, JobStatus
from holdfast.domains.jobs.transitions import ended
from holdfast.domains.workflows.refusal import remains_words, unknown_words
from holdfast.kernel.errors import Corrupt, RecordInvalid, SchemaTooNew
from holdfast.kernel.holder import Liveness, orphaned, stopped, survivors_named
from holdfast.kernel.limits import DOCTOR_CHECK_S
from holdfast.kernel.space import Space
from holdfast.kernel.store import Damage, ReadTx, Row
from holdfast.kernel.text import counted
from holdfast.primitives.journal import Lag
from holdfast.primitives.locks.inspect import LockStatus
from holdfast.primitives.locks.records import LOCKS
from holdfast.runtime.connection import Holdfast
from holdfast.runtime.doctor.finding import Finding, fail, failed, ok, warn
from holdfast.runtime.doctor.store import unwritable
from holdfast.runtime.spaces import all_spaces

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
    found = [
        *(_without_room(job) for job in large[:1]),
        *(_unreadable(error) for error in damaged[:1]),
    ]
    if not found:
        return [ok("queues", "every pending job can be picked")]
    number = len(large) + len(damaged)
    more = (
        []
        if number == 1
        else [
            f"{counted(number, 'job')} can never be picked; `holdfast store check` names damaged "
            "ones"
        ]
    )
    return [
        *found,
        *(fail("queues", says, "see to each of them", RecordInvalid.code) for says in more),
    ]


def _without_room(job: Job) -> Finding:
    cancelled = ended(job, JobStatus.CANCELLED, job.updated_at)
    way_out = (
        f"holdfast store remove jobs {job.job_id}"
        if too_large(cancelled)
        else f"holdfast jobs cancel {job.job_id}"
    )
    says = (
        f"queue {job.agent_session}: job {job.job_id} can never be picked, and each pick passes "
        "over it"
    )
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
        many = (
            f"{counted(len(damaged), 'record')} cannot be read, such as this one: "
            if len(damaged) > 1
            else ""
        )
        return [fail("records", f"{many}{found.says}", found.mend, found.code)]
    if until_s < math.inf:
        return [
            ok(
                "records",
                f"the first {counted(number, 'record')} can be read; `holdfast store check` looks "
                "at all",
            )
        ]
    return [ok("records", f"{counted(number, 'record')} can be read, which are all")]


def _pages(hf: Holdfast, space: Space[Any]) -> Iterator[tuple[int, Damage]]:
    """How many records each page of a space has, and those of them that cannot be read."""
    last = ""
    while True:
        damaged: Damage = []
        # From the last one on, which is passed over: not every store can say what comes just behind
        # a key.
        try:
            found = hf.store.read(
                partial(_page, space=space, start=last, damaged=damaged), scope=[space]
            )
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


LAG_S = 600.0
"""How far a follower of the journal may be behind before it is spoken of."""


def leftovers(hf: Holdfast) -> list[Finding]:
    """Records of processes that are dead. Most are reaped by whoever asks next; here is what nobody
    asked for.
    """
    found = [*_locks(hf), *_jobs(hf), *_workflows(hf), *_agents(hf), *_leases(hf)]
    return found or [ok("leftovers", "nothing of dead processes is left")]


def _locks(hf: Holdfast) -> Iterator[Finding]:
    if not hf.store.may_have_records(LOCKS):
        # Nobody has locked anything since this machine was started; to look would begin that file.
        return
    held = hf.locks.list_held()
    yield from (finding for status in held if status.queue for finding in _stopped(hf, status))
    dead = [status for status in held if any(hold.reclaimable for hold in status.holds)]
    if passed_over := [status.name for status in dead if status.queue]:
        many = counted(
            len(passed_over), "lock that others wait for is", "locks that others wait for are"
        )
        mend = f"look again in a moment; `holdfast locks explain {passed_over[0]}` tells more"
        yield warn("leftovers", f"{many} still held by the dead, such as {passed_over[0]}", mend)
    if unasked := [status.name for status in dead if not status.queue]:
        many = counted(len(unasked), "lock is", "locks are")
        yield ok(
            "leftovers",
            f"{many} still in the name of the dead, such as {unasked[0]}: the next one that asks "
            "gets it",
        )


def _stopped(hf: Holdfast, status: LockStatus) -> Iterator[Finding]:
    for hold in status.holds:
        if hold.process is None:
            continue
        if left := orphaned(hold.process, hf.processes, embedded=hf.store.embedded):
            living = counted(len(left), "of its processes lives", "of its processes live")
            says = (
                f"{status.name} is waited for, and the command of {hold.by}, who holds it, is dead"
            )
            says += f"; {living}: {survivors_named(left)}"
            yield warn(
                "leftovers",
                says,
                f"`holdfast locks explain {quote(status.name)}` says how to end them",
            )
        if stopped(hold.process, hf.processes):
            says = (
                f"{status.name} is waited for, and process {hold.process.pid} of {hold.by}, who "
                "holds it, is stopped"
            )
            mend = (
                f"kill -CONT {hold.process.pid} lets it go on; `holdfast locks explain "
                f"{quote(status.name)}` tells more"
            )
            yield warn("leftovers", says, mend)


def _jobs(hf: Holdfast) -> Iterator[Finding]:
    dead = hf.jobs.abandoned()
    if dead:
        mend = "`holdfast jobs list` puts them back or ends them, and so does the next worker"
        yield warn(
            "leftovers",
            f"{counted(len(dead), 'job runs', 'jobs run')} without anybody, such as "
            f"{dead[0].job_id}",
            mend,
        )


def _workflows(hf: Holdfast) -> Iterator[Finding]:
    if not _has_workflows(hf):
        return
    sight = hf.workflows.sight()
    over = [workflow.name for workflow in sight.workflows if sight.gone(workflow)]
    if over:
        mend = "`holdfast workflows sweep` takes them out, and so does the next swap"
        yield warn(
            "leftovers",
            f"{counted(len(over), 'workflow is', 'workflows are')} over and still registered, "
            f"such as {over[0]}",
            mend,
        )
    if sight.marker is not None and sight.verdicts.get(sight.marker.holder) is Liveness.DEAD:
        mend = "`holdfast swap reconcile` clears it, and so does the next one who looks"
        yield warn(
            "leftovers",
            f"the swap to {sight.marker.recipe} is marked as under way, and its process is dead",
            mend,
        )
    elif sight.marker is not None and (remains := hf.workflows.remains(sight.marker)) is not None:
        mend = (
            "`holdfast swap to RECIPE -- COMMAND` ends that load and then runs COMMAND: until "
            "then no work begins"
        )
        yield warn("leftovers", remains_words(remains), mend)
    if sight.marker is None and sight.loaded.unknown is not None:
        mend = "load a recipe with `holdfast swap to RECIPE -- COMMAND`: until then no work begins"
        yield warn(
            "leftovers",
            f"it is unknown what is loaded: {unknown_words(sight.loaded.unknown)}",
            mend,
        )


def _has_workflows(hf: Holdfast) -> bool:
    """Has anybody used workflows here? In plain files, to look would begin their folder."""
    if hf.store.layout_folder("workflows") is None:
        return True
    own = hf.store.side_folder("workflows")
    return own is not None and (own / hf.store.namespace).is_dir()


def _agents(hf: Holdfast) -> Iterator[Finding]:
    planned = [item for item in hf.agents.cleanup(dry_run=True).planned if item.why in REMOVED_FOR]
    if planned:
        says = (
            f"{counted(len(planned), 'agent')} left something behind, such as "
            f"{planned[0].agent_id} ({planned[0].why.value})"
        )
        yield warn(
            "leftovers", says, "`holdfast agents cleanup` removes it; with --dry-run it says what"
        )


def _leases(hf: Holdfast) -> Iterator[Finding]:
    network = hf.network
    shown = [
        *network.list_host_leases(damaged=[]).values(),
        *network.list_neighbor_leases(damaged=[]).values(),
    ]
    dead = sum(lease["dead"] for one in shown for lease in one["leases"])
    if dead:
        mend = "`holdfast network sweep` removes them, and so does the next change of the same host"
        yield warn(
            "leftovers",
            f"{counted(dead, 'lease of the dead is', 'leases of the dead are')} left on hosts or "
            "neighbours",
            mend,
        )


def followers(hf: Holdfast) -> list[Finding]:
    """What is yet to be told: events to brokers, and the journal to its audit log and files."""
    found = [*_events(hf), *_audit_log(hf)]
    if _has_workflows(hf) and (swaps := hf.workflows.swap_log_lag()) is not None:
        found += _behind(
            hf,
            "the swap log",
            swaps,
            "see to it that swap_log.jsonl can be written; the next swap brings it up to date",
        )
    return found or [
        ok("journal", "the audit log keeps up, and no event waits for a broker that was chosen")
    ]


def _events(hf: Holdfast) -> Iterator[Finding]:
    if hf.job_events.sendable(os.environ):
        number = hf.job_events.unsent_count()
        mend = "`holdfast jobs publish --unsent` sends them when their broker can be reached"
        yield warn(
            "journal",
            f"{counted(number, 'event of jobs waits', 'events of jobs wait')} for their broker",
            mend,
        )


def _audit_log(hf: Holdfast) -> Iterator[Finding]:
    if hf.job_log is None:
        return
    folder = hf.job_log.folder
    if why := unwritable(folder):
        mend = (
            "make it writable, or choose another folder with jobs.logs in holdfast.toml (or "
            "DELEGATE_JOB_LOGS_DIR)"
        )
        yield fail(
            "journal", f"the audit log {folder} cannot be written: {why}", mend, "unavailable"
        )
        return
    yield from _behind(
        hf,
        f"the audit log {folder}",
        hf.job_log.lag(hf.log),
        "`holdfast jobs logs --list` writes what is missing",
    )


def _behind(hf: Holdfast, what: str, lag: Lag, mend: str) -> Iterator[Finding]:
    if lag.since is not None and (age_s := (hf.store.now() - lag.since).total_seconds()) > LAG_S:
        yield warn(
            "journal",
            f"{what} is {counted(lag.entries, 'entry', 'entries')} and {age_s / 60:.0f} minutes "
            "behind",
            mend,
        )
