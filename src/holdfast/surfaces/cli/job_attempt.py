"""One attempt at a job: its command, and everything that can end it before its time."""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple

from holdfast.domains.jobs import Job, JobStatus
from holdfast.domains.jobs.change import job_topic
from holdfast.domains.jobs.records import TIMED_OUT, beat_every_s, shown
from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import HoldfastError, Lost, NotFound, Refused, Unavailable
from holdfast.kernel.holder import attempt_tree
from holdfast.kernel.limits import JOB_LEASE_S
from holdfast.kernel.store import Listener, Woken
from holdfast.processes.piped_command import PipedCommand
from holdfast.processes.shared_tree import SharedTree
from holdfast.runtime.connection import Holdfast
from holdfast.stores.listener import readable
from holdfast.surfaces.cli.connection import REGISTRY_DIR_ENV
from holdfast.surfaces.cli.output import write

RESULT_CHARS_MAX = 2000
_VARIABLE_BYTES_MAX = 64 << 10
"""Longer variables would keep the command from being started: Linux takes none above 128 kB.

The job is on its standard input.
"""

_AWAY_S = 0.5
"""How long a store that is away is left alone before it is asked again."""


class WorkSettings(NamedTuple):
    """How a worker runs its jobs."""

    words: tuple[str, ...]
    validate: tuple[str, ...] | None
    stdin: str
    heartbeat_s: float | None
    registry_dir: str | None


class Outcome(NamedTuple):
    """How an attempt went: the verdict on its job, or None where the worker has none to give."""

    status: JobStatus | None
    words: str
    code: str | None = None
    lost: bool = False
    """Whether the job is another's by now, or over."""


class Attempt:
    """One attempt.

    `tree` is the worker's, which the claim names: the attempt's processes are a part of it.
    """

    def __init__(
        self,
        hf: Holdfast,
        job: Job,
        settings: WorkSettings,
        *,
        stop_fd: int,
        progress: "Progress",
        tree: SharedTree | None = None,
    ) -> None:
        self._hf = hf
        self._job = job
        self._settings = settings
        self._stop_fd = stop_fd
        self._progress = progress
        self._tree = tree
        self._every_s = settings.heartbeat_s or beat_every_s(job) or JOB_LEASE_S / 3
        self._end_s = time.monotonic() + job.timeout_sec

    def outcome(self) -> Outcome:
        """Run the command, and then what judges it."""
        ran = self._run(self._settings.words, self._stdin(), "the command")
        if ran.status is not JobStatus.COMPLETED:
            return ran
        if missing := self._missing():
            # Not longer than an event may be: a verdict that cannot be told would take the worker
            # down with it.
            words = f"expected and not there: {', '.join(missing)}"[:RESULT_CHARS_MAX]
            return Outcome(JobStatus.ERROR, words, "artifacts_missing")
        if self._settings.validate is not None:
            self._progress.last = ""
            judged = self._run(self._settings.validate, b"", "the validation")
            if judged.status is not JobStatus.COMPLETED:
                return (
                    judged._replace(code="not_valid") if judged.code == "command_failed" else judged
                )
        return ran

    def _run(self, words: tuple[str, ...], stdin: bytes, what: str) -> Outcome:
        try:
            command = PipedCommand(
                words,
                self._hf.processes.trees,
                cwd=self._job.workdir,
                environment=self._environment(),
                stdin=stdin,
                each_line=self._progress.line,
                # Only with its own tree is this a worker, which has one command at a time and no
                # other children.
                adopts=self._tree is not None,
                tree=None
                if self._tree is None
                else attempt_tree(self._tree.id, self._job.token or 0),
                within=self._tree,
            )
        except Unavailable as error:
            return Outcome(JobStatus.ERROR, error.message, "not_started")
        early: Outcome | None = None
        try:
            early = self._attend(command)
            if early is None and command.unguarded:
                early = Outcome(
                    JobStatus.ERROR,
                    f"the guardian of {what} was killed: {what} was ended",
                    "command_failed",
                )
        finally:
            self._end_tree(command, signs=early is None or not early.lost)
        try:
            code = command.close()
        except (NotFound, Unavailable) as error:
            return early or Outcome(JobStatus.ERROR, error.message, "not_started")
        if early is not None:
            return early
        said = self._progress.last[:RESULT_CHARS_MAX]
        if code == 0:
            return Outcome(JobStatus.COMPLETED, said)
        how = f"was ended by signal {-code}" if code < 0 else f"ended with {code}"
        return Outcome(
            JobStatus.ERROR, f"{what} {how}" + (f": {said}" if said else ""), "command_failed"
        )

    def _end_tree(self, command: PipedCommand, *, signs: bool) -> None:
        """End what is left of the command's tree, with signs of life in between: no process of an
        attempt is left when its verdict is given.
        """
        command.end_tree()
        while not command.wait_for_tree(self._every_s):
            if signs:
                # A job that is taken away meanwhile is told of when the verdict is refused.
                self._beat()

    def _attend(self, command: PipedCommand) -> Outcome | None:
        """Sleep until the command is over, with signs of life in between; return what ends the
        attempt before.
        """
        beat_s = time.monotonic() + self._every_s
        ears: Listener | None = None
        away = False
        with ExitStack() as heard:
            while not command.over():
                if ears is None:
                    ears = self._listen(heard)
                    # What became of the job while the store was away is asked for at once: nobody
                    # was told.
                    beat_s = time.monotonic() if away and ears is not None else beat_s
                    away = ears is None
                now_s = time.monotonic()
                if now_s >= self._end_s:
                    return Outcome(
                        JobStatus.ERROR,
                        f"it took longer than {self._job.timeout_sec:g} s",
                        TIMED_OUT,
                    )
                left_s = min(beat_s, self._end_s) - now_s
                fds = [command.fd, self._stop_fd]
                if ears is None:
                    woken = Woken(False, frozenset(readable(fds, min(left_s, _AWAY_S))))
                else:
                    woken = ears.wait(left_s, also=fds)
                if self._stop_fd in woken.ready:
                    return Outcome(None, "the worker was told to stop")
                if woken.notified or time.monotonic() >= beat_s:
                    beat_s = time.monotonic() + self._every_s
                    if (taken := self._beat()) is not None:
                        return Outcome(None, taken, lost=True)
        return None

    def _listen(self, heard: ExitStack) -> Listener | None:
        """Ears for the job, or None while the store is away: its command goes on without, and so
        does its time.
        """
        try:
            return heard.enter_context(self._hf.store.listen([job_topic(self._job.job_id)]))
        except Unavailable:
            return None

    def _beat(self) -> str | None:
        """Give a sign of life; say so when the job is no longer this worker's."""
        try:
            self._hf.jobs.heartbeat(self._job.job_id, token=self._job.token or 0)
            self._progress.tell(self._job)
        except (Lost, Refused) as error:
            return None if self._told_its_end() else error.message
        except HoldfastError:
            # The store is away for a moment. What it would have said, it says at the next one.
            return None
        return None

    def _told_its_end(self) -> bool:
        """Did the command say itself how the job ended? Then it may finish."""
        try:
            return self._hf.job_events.told_end(self._job)
        except HoldfastError:
            return False

    def _missing(self) -> list[str]:
        folder = self._job.workdir or os.getcwd()
        return [
            path
            for path in self._job.expected_artifacts
            if not os.path.exists(os.path.join(folder, path))
        ]

    def _stdin(self) -> bytes:
        if self._settings.stdin == "none":
            return b""
        return (
            self._job.prompt.encode()
            if self._settings.stdin == "prompt"
            else to_json(shown(self._job)) + b"\n"
        )

    def _environment(self) -> dict[str, str]:
        job = self._job
        own = {
            "HOLDFAST_JOB_ID": job.job_id,
            "HOLDFAST_JOB_TOKEN": str(job.token),
            "HOLDFAST_JOB_ATTEMPT": str(job.attempt),
            "HOLDFAST_JOB_AGENT": job.agent,
            "HOLDFAST_JOB_SESSION": job.agent_session,
            "HOLDFAST_NAMESPACE": self._hf.store.namespace,
        }
        long = {
            "HOLDFAST_JOB_PROMPT": job.prompt,
            "HOLDFAST_JOB_ARTIFACTS": "\n".join(job.expected_artifacts),
        }
        for name, value in long.items():
            if len(value.encode()) <= _VARIABLE_BYTES_MAX and "\0" not in value:
                own[name] = value
        if self._settings.registry_dir is not None:
            own[REGISTRY_DIR_ENV] = os.path.abspath(self._settings.registry_dir)
        elif self._hf.settings.store is not None:
            own["HOLDFAST_STORE"] = self._hf.settings.store
        # A worker of a store may run inside one of a folder, and its commands must not look there.
        around = {name: value for name, value in os.environ.items() if name != REGISTRY_DIR_ENV}
        return {**around, **own}


class Progress:
    """What the command says: passed on, and told as an event now and then when there is something
    new.

    `kept` is called with the job of each event, so that it is sent while the work goes on.
    """

    def __init__(self, hf: Holdfast, *, kept: Callable[[str], None]) -> None:
        self._hf = hf
        self._kept = kept
        self.last = ""
        self._told = ""

    def line(self, line: bytes) -> None:
        """A line of the command's output."""
        text = line.decode(errors="backslashreplace").rstrip()
        self.last = text.strip() or self.last
        try:
            write(text)
        except OSError:
            # Nobody reads it; the work goes on all the same.
            return

    def tell(self, job: Job) -> None:
        """Keep an event if there is something new."""
        if self.last and self.last != self._told:
            self._told = self.last
            self._hf.job_events.publish(
                job.job_id, "progress", detail=self.last[:RESULT_CHARS_MAX], token=job.token
            )
            self._kept(job.job_id)
