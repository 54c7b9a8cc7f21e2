"""Records: damaged ones, jobs that nobody can pick, what dead processes left, and followers of the
journal that are behind.
"""

import os
import time
from collections.abc import Iterator
from shlex import quote
from typing import Any

from holdfast.domains.jobs.draft import no_room, too_large
from holdfast.domains.jobs.records import Job, JobStatus
from holdfast.domains.jobs.transitions import Verdict, ended
from holdfast.domains.workflows.messages import describe_orphan_load, describe_unknown
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
from holdfast.runtime.maintenance import all_spaces

_PAGE = 100
_READ_S = 0.5 * DOCTOR_CHECK_S
"""How long records are read. `holdfast store check` reads all, however long that takes."""
LAG_S = 600.0
"""How far a follower of the journal may be behind before a warning."""


def queues(hf: Holdfast) -> list[Finding]:
    """Pending jobs that no worker can ever pick."""
    damaged: Damage = []
    try:
        large = hf.jobs.unpickable(damaged=damaged)
    except SchemaTooNew:
        # The schema check reports this for the whole space.
        return []
    found = [_too_large(job) for job in large[:1]]
    for error in damaged[:1]:
        first = failed(error)
        key = error.fields.get("key")
        says = f"job {key} waits in a queue and can never be picked: {first.says}"
        found.append(fail(says, first.fix, first.code))
    number = len(large) + len(damaged)
    if number > 1:
        says = (
            f"{counted(number, 'job')} can never be picked; `holdfast store check` names damaged "
            "ones"
        )
        found.append(fail(says, "see to each of them", RecordInvalid.code))
    return found or [ok("every pending job can be picked")]


def _too_large(job: Job) -> Finding:
    cancelled = ended(job, Verdict(JobStatus.CANCELLED), job.updated_at)
    command = "store remove jobs" if too_large(cancelled) else "jobs cancel"
    return fail(
        f"queue {job.agent_session}: job {job.job_id} can never be picked, and each pick skips it",
        f"{no_room(job)}; then `holdfast {command} {job.job_id}`",
        RecordInvalid.code,
    )


def records(hf: Holdfast) -> list[Finding]:
    """Records that are damaged, or that a newer program wrote. Agents have a check of their own."""
    spaces = [space for space in all_spaces() if not space.volatile and space.name != "agents"]
    until_s = time.monotonic() + _READ_S
    damaged: dict[str, Corrupt] = {}
    number, rest = 0, "all there are"
    for keys, unread in (page for space in spaces for page in _pages(hf, space)):
        number += keys
        damaged |= {error.message: error for error in unread}
        if time.monotonic() >= until_s:
            rest = "then its time was over: `holdfast store check` reads all"
            break
    if damaged:
        first = failed(next(iter(damaged.values())))
        many = f"{counted(len(damaged), 'record')} cannot be read, such as this one: "
        return [fail((many if len(damaged) > 1 else "") + first.says, first.fix, first.code)]
    return [ok(f"{counted(number, 'record')} can be read, {rest}")]


def _pages(hf: Holdfast, space: Space[Any]) -> Iterator[tuple[int, Damage]]:
    """The number of records in each page of a space, and those of them that cannot be read."""
    last = ""
    while True:
        damaged: Damage = []

        def read_page(tx: ReadTx, start: str = last, damaged: Damage = damaged) -> list[Row[Any]]:
            damaged.clear()
            return tx.range(space, start=start, limit=_PAGE + 1, damaged=damaged)

        # The page begins with the last key, which is left out below: not every store can begin just
        # behind a key.
        try:
            found = hf.store.read(read_page, scope=[space])
        except SchemaTooNew:
            # The schema check reports this for the whole space.
            return
        keys = {row.key for row in found} | {str(error.fields.get("key")) for error in damaged}
        keys.discard(last)
        yield len(keys), damaged
        if len(keys) < _PAGE:
            return
        last = max(keys)


def leftovers(hf: Holdfast) -> list[Finding]:
    """Records of dead processes. The next request reaps most of them; these are what nobody has
    requested since.
    """
    found = [*_locks(hf), *_jobs(hf), *_workflows(hf), *_agents(hf), *_leases(hf)]
    return found or [ok("nothing of dead processes is left")]


def _locks(hf: Holdfast) -> Iterator[Finding]:
    if not hf.store.may_have_records(LOCKS):
        # Nobody has locked anything since this machine was started, and a read would make the file.
        return
    held = hf.locks.list_held()
    for status in held:
        if status.queue:
            yield from _stuck_holders(hf, status)
    dead = [status for status in held if any(hold.reclaimable for hold in status.holds)]
    if waited := [status.name for status in dead if status.queue]:
        many = counted(
            len(waited), "lock that others wait for is", "locks that others wait for are"
        )
        yield warn(
            f"{many} still held by the dead, such as {waited[0]}",
            f"check again in a moment; `holdfast locks explain {waited[0]}` says more",
        )
    if unasked := [status.name for status in dead if not status.queue]:
        yield ok(
            f"{counted(len(unasked), 'lock is', 'locks are')} still in the name of the dead, such "
            f"as {unasked[0]}: the next one that asks gets it"
        )


def _stuck_holders(hf: Holdfast, status: LockStatus) -> Iterator[Finding]:
    explain = f"`holdfast locks explain {quote(status.name)}`"
    for hold in status.holds:
        if hold.process is None:
            continue
        if left := orphaned(hold.process, hf.processes, embedded=hf.store.embedded):
            living = counted(len(left), "of its processes lives", "of its processes live")
            yield warn(
                f"{status.name} is waited for, and the command of {hold.by}, who holds it, is "
                f"dead; {living}: {survivors_named(left)}",
                f"{explain} says how to end them",
            )
        if stopped(hold.process, hf.processes):
            pid = hold.process.pid
            yield warn(
                f"{status.name} is waited for, and process {pid} of {hold.by}, who holds it, is "
                "stopped",
                f"kill -CONT {pid} continues it; {explain} says more",
            )


def _jobs(hf: Holdfast) -> Iterator[Finding]:
    if dead := hf.jobs.abandoned():
        many = counted(len(dead), "job runs", "jobs run")
        yield warn(
            f"{many} without anybody, such as {dead[0].job_id}",
            "`holdfast jobs list` puts them back or ends them, and so does the next worker",
        )


def _workflows(hf: Holdfast) -> Iterator[Finding]:
    if not _has_workflows(hf):
        return
    snapshot = hf.workflows.snapshot()
    marker, unknown = snapshot.marker, snapshot.loaded.unknown
    if over := [workflow.name for workflow in snapshot.workflows if snapshot.gone(workflow)]:
        many = counted(len(over), "workflow is", "workflows are")
        yield warn(
            f"{many} over and still registered, such as {over[0]}",
            "`holdfast workflows sweep` takes them out, and so does the next swap",
        )
    if marker is not None and snapshot.probed.get(marker.holder) is Liveness.DEAD:
        yield warn(
            f"the swap to {marker.recipe} is marked as under way, and its process is dead",
            "`holdfast swap reconcile` clears it, and so does the next swap request",
        )
    elif marker is not None and (remains := hf.workflows.orphan_load(marker)) is not None:
        yield warn(
            describe_orphan_load(remains),
            "`holdfast swap to RECIPE -- COMMAND` ends that load and then runs COMMAND: until "
            "then no work begins",
        )
    if marker is None and unknown is not None:
        yield warn(
            f"it is unknown what is loaded: {describe_unknown(unknown)}",
            "load a recipe with `holdfast swap to RECIPE -- COMMAND`: until then no work begins",
        )


def _has_workflows(hf: Holdfast) -> bool:
    """Has anybody used workflows here? In plain files, reading them would make their folder."""
    if hf.store.layout_folder("workflows") is None:
        return True
    own = hf.store.side_folder("workflows")
    return own is not None and (own / hf.store.namespace).is_dir()


def _agents(hf: Holdfast) -> Iterator[Finding]:
    planned = hf.agents.cleanup(dry_run=True).planned
    if planned:
        first = f"{planned[0].agent_id} ({planned[0].why.value})"
        yield warn(
            f"{counted(len(planned), 'agent')} left something behind, such as {first}",
            "`holdfast agents cleanup` removes it; with --dry-run it says what",
        )


def _leases(hf: Holdfast) -> Iterator[Finding]:
    hosts = hf.network.list_host_leases(damaged=[]).values()
    neighbors = hf.network.list_neighbor_leases(damaged=[]).values()
    dead = sum(lease["dead"] for one in (*hosts, *neighbors) for lease in one["leases"])
    if dead:
        many = counted(dead, "lease of the dead is", "leases of the dead are")
        yield warn(
            f"{many} left on hosts or neighbours",
            "`holdfast network sweep` removes them, and so does the next change of the same host",
        )


def followers(hf: Holdfast) -> list[Finding]:
    """Followers of the journal that are behind: events for brokers, the audit log, the swap log."""
    found = [*_events(hf), *_audit_log(hf)]
    if _has_workflows(hf) and (swaps := hf.workflows.swap_log_lag()) is not None:
        fix = "make swap_log.jsonl writable; the next swap brings it up to date"
        found += _behind(hf, "the swap log", swaps, fix)
    return found or [ok("the audit log keeps up, and no event waits for a configured broker")]


def _events(hf: Holdfast) -> Iterator[Finding]:
    if hf.job_events.sendable(os.environ):
        many = counted(hf.job_events.unsent_count(), "event of jobs waits", "events of jobs wait")
        yield warn(
            f"{many} for their broker",
            "`holdfast jobs publish --unsent` sends them when their broker can be reached",
        )


def _audit_log(hf: Holdfast) -> Iterator[Finding]:
    if hf.job_log is None:
        return
    folder = hf.job_log.folder
    if why := unwritable(folder):
        yield fail(
            f"the audit log {folder} cannot be written: {why}",
            "make it writable, or choose another folder with jobs.logs in holdfast.toml (or "
            "DELEGATE_JOB_LOGS_DIR)",
            "unavailable",
        )
        return
    fix = "`holdfast jobs logs --list` writes what is missing"
    yield from _behind(hf, f"the audit log {folder}", hf.job_log.lag(hf.log), fix)


def _behind(hf: Holdfast, what: str, lag: Lag, fix: str) -> Iterator[Finding]:
    if lag.since is not None and (age_s := (hf.store.now() - lag.since).total_seconds()) > LAG_S:
        entries = counted(lag.entries, "entry", "entries")
        yield warn(f"{what} is {entries} and {age_s / 60:.0f} minutes behind", fix)
