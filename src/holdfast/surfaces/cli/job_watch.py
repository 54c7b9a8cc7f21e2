"""`holdfast jobs watch`: the registry counts, and the broker brings its events sooner.

Each round reads the registry, so it does not matter when the watcher began, or what it missed while
the broker was away. For a job that was removed after its end, the audit log says how it ended.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import click

from holdfast.adapters.mqtt import Message, Subscriber
from holdfast.domains.jobs import Job, JobStatus
from holdfast.domains.jobs.broker_address import BrokerAddress, address_of
from holdfast.domains.jobs.events import Event
from holdfast.domains.jobs.records import shown
from holdfast.domains.jobs.transitions import no_such
from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import STATUS, BrokerUnavailable, NotFound, Unavailable
from holdfast.kernel.store import JOURNAL_TOPIC
from holdfast.processes.signals import interruptible
from holdfast.runtime.connection import Holdfast
from holdfast.runtime.outage import Outage
from holdfast.surfaces.cli.command import Duration, json_option
from holdfast.surfaces.cli.connection import connected
from holdfast.surfaces.cli.job_run import EXIT_NOT_COMPLETED
from holdfast.surfaces.cli.output import printable, remark
from holdfast.surfaces.cli.store_options import job_store_options

_TIMED_OUT = STATUS["lock_timeout"].exit

_log = logging.getLogger("holdfast.jobs")


class JobWatch:
    """Follows some jobs, or all that are unfinished or come from now on."""

    def __init__(self, hf: Holdfast, job_ids: Sequence[str], *, as_json: bool) -> None:
        self._hf = hf
        self._as_json = as_json
        self._any = not job_ids
        self._listener = hf.store.listen([JOURNAL_TOPIC])
        self._cursor = hf.log.tail(0)[1]
        self._seen: dict[str, int] = {}
        self._over: dict[str, JobStatus] = {}
        self._subscribers: dict[BrokerAddress, Subscriber] = {}
        self._unreachable: set[BrokerAddress] = set()
        self._received: list[Message] = []
        self._active_s = time.monotonic()
        self.away: Unavailable | None = None
        """Why the last round failed, if the store did not answer."""
        for status in ("pending", "running") if self._any else ():
            for job in hf.jobs.list_jobs(status=status):
                self._begin(job)
        for job_id in job_ids:
            try:
                self._begin(hf.jobs.get_job(job_id))
            except NotFound:
                self._recall(job_id)

    def until_end(self, *, timeout_s: float | None, idle_s: float | None) -> int:
        """Follow them to the end, or until time runs out; return the exit status."""
        started_s = time.monotonic()
        outage = Outage(remark)
        while True:
            try:
                self._update()
                self.away = None
                outage.over()
            except Unavailable as error:
                # A database that restarts comes back, and the jobs go on meanwhile.
                self.away = error
            if (status := self._verdict()) is not None:
                return status
            limits = [started_s + timeout_s] if timeout_s is not None else []
            limits += [self._active_s + idle_s] if idle_s is not None else []
            left_s = min(limits) - time.monotonic() if limits else None
            if left_s is not None and left_s <= 0:
                waiting = ", ".join(one for one in self._seen if one not in self._over) or "any job"
                why = "" if self.away is None else f" ({self.away.message})"
                remark(
                    f"time ran out before the end of {waiting}{why}: `holdfast jobs get --job ID` "
                    "shows where it stands"
                )
                return _TIMED_OUT
            if self.away is not None:
                outage.wait(self.away, left_s)
            else:
                self._listener.wait(left_s, also=[one.fd for one in self._subscribers.values()])

    def close(self) -> None:
        """Stop listening."""
        for one in self._subscribers.values():
            one.close()
        self._listener.__exit__(None, None, None)

    def _recall(self, job_id: str) -> None:
        """Report how a job ended that is not in the registry any more. Raises NotFound when the
        audit log does not have it.
        """
        self._hf.catch_up(wait=True)
        logged = None if self._hf.job_log is None else self._hf.job_log.status(job_id)
        ends = {one.value: one for one in JobStatus if one.ended}
        status = None if logged is None else ends.get(str(logged.get("status")))
        if status is None:
            raise no_such(job_id)
        self._seen[job_id] = 0
        self._over[job_id] = status
        line = f"{job_id} is {status.value}, and removed from the registry since"
        known = {"job_id": job_id, "status": status.value}
        self._say(to_json(known) if self._as_json else line)

    def _begin(self, job: Job) -> None:
        self._seen[job.job_id] = 0
        if job.status.ended:
            return
        reach = address_of(job.broker, os.environ)
        if reach in self._subscribers:
            self._subscribers[reach].add([job.events_topic])
        elif reach not in self._unreachable:
            try:
                self._subscribers[reach] = Subscriber(reach, [job.events_topic])
            except BrokerUnavailable as error:
                self._unreachable.add(reach)
                _log.info("watching the registry alone: %s", error.message)

    def _update(self) -> None:
        for one in self._subscribers.values():
            self._received += one.take()
            if one.trouble:
                _log.info("broker=%s: %s; watching the registry", one.address.shown, one.trouble)
        while self._received:
            self._hf.job_events.receive(self._received[0].payload, topic=self._received[0].topic)
            # Not before it is stored: the broker does not send it again.
            del self._received[0]
        self._hf.jobs.reap()
        if self._any:
            self._add_new()
        for job_id in [job_id for job_id in self._seen if job_id not in self._over]:
            self._follow(job_id)

    def _add_new(self) -> None:
        for batch in self._hf.log.since(self._cursor):
            self._cursor = batch.cursor
            for entry in batch.entries:
                if entry.kind == "job.registered" and entry.subject not in self._seen:
                    job = self._hf.jobs.peek(entry.subject)
                    if job is not None:
                        self._begin(job)

    def _follow(self, job_id: str) -> None:
        # The job before its events: its last event is then among them.
        job = self._hf.jobs.peek(job_id)
        if job is None:
            self._recall(job_id)
            return
        for event in self._hf.job_events.of_job(job_id, after_seq=self._seen[job_id]):
            self._seen[job_id] = event.seq
            self._say(to_json(event) if self._as_json else _line(event))
        if job.status.ended:
            self._over[job_id] = job.status
            self._say(to_json(shown(job)) if self._as_json else _end(job))

    def _say(self, line: str | bytes) -> None:
        self._active_s = time.monotonic()
        click.echo(line)

    def _verdict(self) -> int | None:
        completed = [status is JobStatus.COMPLETED for status in self._over.values()]
        if not all(completed):
            return EXIT_NOT_COMPLETED
        done = bool(completed) if self._any else len(completed) == len(self._seen)
        return 0 if done else None


def _line(event: Event) -> str:
    detail = f": {event.detail}" if event.detail else ""
    return printable(f"{event.job_id} #{event.seq} {event.event.value}{detail}".replace("\n", " "))


def _end(job: Job) -> str:
    words = job.result if job.status is JobStatus.COMPLETED else job.error
    line = f"{job.job_id} is {job.status.value}" + (f": {words}" if words else "")
    return printable(line).replace("\n", " ")


def jobs_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let a command take JOBs; --job does as well, and the help does not mention it."""

    @wraps(command)
    def run(job_ids: tuple[str, ...], more_ids: tuple[str, ...], **more: Any) -> Any:
        return command(job_ids=(*job_ids, *more_ids), **more)

    option = click.option("--job", "more_ids", multiple=True, hidden=True, help="A job's id.")
    return option(click.argument("job_ids", metavar="JOB...", nargs=-1)(run))


@click.command()
@jobs_argument
@click.option(
    "--any", "any_", is_flag=True, help="Watch all jobs, and end with the first that ends."
)
@click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    type=Duration(),
    help="Seconds to watch at most.  [default: no limit]",
)
@click.option(
    "--idle-timeout",
    "idle_s",
    metavar="SECONDS",
    type=Duration(),
    help="Seconds to watch without anything new.  [default: no limit]",
)
@json_option
@job_store_options
def watch(
    job_ids: tuple[str, ...],
    any_: bool,
    timeout_s: float | None,
    idle_s: float | None,
    as_json: bool,
) -> int:
    """Follow jobs until they end: exit status 0 when all completed, 1 when one ended otherwise, 5
    when time ran out.

    Events come from the broker as they are sent. How a job ended is read from the store, so a
    watcher that starts late, or loses the broker, sees it too.
    """
    if any_ == bool(job_ids):
        raise click.UsageError("say which jobs, or --any")
    with connected() as hf, interruptible():
        watched = JobWatch(hf, job_ids, as_json=as_json)
        try:
            return watched.until_end(timeout_s=timeout_s, idle_s=idle_s)
        finally:
            watched.close()
            if watched.away is None:
                hf.catch_up()
