"""One attempt at a job: its command or handler, and everything that can end it early."""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from holdfast.domains.jobs.records import TIMED_OUT, Job, JobStatus, beat_every_s, shown
from holdfast.domains.jobs.transitions import job_topic
from holdfast.domains.jobs.work import Handler, WorkRequest
from holdfast.kernel.codec import encodable, to_json
from holdfast.kernel.errors import HoldfastError, Lost, NotFound, Refused, Unavailable
from holdfast.kernel.holder import attempt_tree
from holdfast.kernel.store import Listener, Woken
from holdfast.processes.piped_command import PipedCommand
from holdfast.processes.trees import SharedTree
from holdfast.runtime.configuration import REGISTRY_DIR_ENV
from holdfast.runtime.connection import Holdfast
from holdfast.stores.listener import readable

RESULT_CHARS_MAX = 2000
_VARIABLE_BYTES_MAX = 64 << 10
"""Linux starts no program with a variable above 128 kB. The whole job is on standard input."""
_RETRY_LISTEN_S = 0.5

_log = logging.getLogger("holdfast.jobs")


class AttemptOutcome(NamedTuple):
    """The verdict on an attempt. `status` is None where the worker has none to give: it was
    stopped, or the job was taken away from it (`lost`).
    """

    status: JobStatus | None
    words: str
    code: str | None = None
    lost: bool = False


class Attempt:
    """One attempt of a worker. `tree` is the process tree that the claim names: the processes of
    the command become a part of it. `on_progress` is called after each event. `on_timeout` gives
    the verdict on a handler that runs beyond the job's time limit, since nothing can end it.
    """

    def __init__(
        self,
        hf: Holdfast,
        job: Job,
        request: WorkRequest,
        *,
        stop_fd: int,
        tree: SharedTree | None,
        registry_dir: Path | None,
        on_progress: Callable[[], object],
        on_timeout: Callable[[AttemptOutcome], object],
    ) -> None:
        self._hf = hf
        self._job = job
        self._request = request
        self._stop_fd = stop_fd
        self._tree = tree
        self._registry_dir = registry_dir
        self._on_progress = on_progress
        self._on_timeout = on_timeout
        self._every_s = request.heartbeat_s or beat_every_s(job)
        self._end_s = time.monotonic() + job.timeout_sec
        self._last_line = ""
        self._published_line = ""

    def run(self) -> AttemptOutcome:
        """Do the task, check the expected artifacts, and run the validation."""
        task = self._request.task
        if isinstance(task, tuple):
            ran = self._run_command(task, self._stdin(), "the command")
        else:
            ran = self._run_handler(task)
        if ran.status is not JobStatus.COMPLETED:
            return ran
        folder = self._job.workdir or os.getcwd()
        missing = [
            path
            for path in self._job.expected_artifacts
            if not os.path.exists(os.path.join(folder, path))
        ]
        if missing:
            words = f"expected and not there: {', '.join(missing)}"[:RESULT_CHARS_MAX]
            return AttemptOutcome(JobStatus.ERROR, words, "artifacts_missing")
        if self._request.validate is not None:
            self._last_line = ""
            valid = self._run_command(self._request.validate, b"", "the validation")
            if valid.status is not JobStatus.COMPLETED:
                failed = valid.code == "command_failed"
                return valid._replace(code="not_valid") if failed else valid
        return ran

    def _run_handler(self, handler: Handler) -> AttemptOutcome:
        over_fd = os.eventfd(0, os.EFD_CLOEXEC)
        watcher = threading.Thread(
            target=self._watch_handler, args=(over_fd,), name="holdfast-heartbeat", daemon=True
        )
        watcher.start()
        try:
            result = handler(self._job)
        except Exception as error:  # noqa: BLE001 - the job ends in error, whatever it is
            if isinstance(error, Lost) and error.fields.get("job_id") == self._job.job_id:
                return AttemptOutcome(None, error.message, lost=True)
            _log.warning("handler failed job=%s", self._job.job_id, exc_info=True)
            words = f"{type(error).__name__}: {error}"
            return AttemptOutcome(JobStatus.ERROR, encodable(words), "handler_failed")
        finally:
            os.eventfd_write(over_fd, 1)
            watcher.join()
            os.close(over_fd)
        if result is None or isinstance(result, str):
            return AttemptOutcome(JobStatus.COMPLETED, encodable(result or ""))
        words = f"the handler returned a {type(result).__name__}: return text or None"
        return AttemptOutcome(JobStatus.ERROR, words, "handler_failed")

    def _watch_handler(self, over_fd: int) -> None:
        early = self._watch(lambda: bool(readable([over_fd], 0)), [over_fd])
        if early is not None and not early.lost:
            self._on_timeout(early)

    def _run_command(self, words: tuple[str, ...], stdin: bytes, what: str) -> AttemptOutcome:
        tree, token = self._tree, self._job.token or 0
        try:
            command = PipedCommand(
                words,
                self._hf.processes.trees,
                cwd=self._job.workdir,
                environment=self._environment(),
                stdin=stdin,
                each_line=self._take_line,
                adopts=self._request.adopts_orphans,
                tree=None if tree is None else attempt_tree(tree.id, token),
                within=tree,
            )
        except Unavailable as error:
            return AttemptOutcome(JobStatus.ERROR, error.message, "not_started")
        early: AttemptOutcome | None = None
        try:
            early = self._watch(command.over, [command.fd, self._stop_fd])
            if early is None and command.unguarded:
                killed = f"the guardian of {what} was killed: {what} was ended"
                early = AttemptOutcome(JobStatus.ERROR, killed, "command_failed")
        finally:
            # No process of an attempt may live when its verdict is given. A job that is taken away
            # meanwhile is noticed when the verdict is refused.
            command.end_tree()
            while not command.wait_for_tree(self._every_s):
                if early is None or not early.lost:
                    self._beat()
        try:
            code = command.close()
        except (NotFound, Unavailable) as error:
            return early or AttemptOutcome(JobStatus.ERROR, error.message, "not_started")
        if early is not None:
            return early
        said = self._last_line[:RESULT_CHARS_MAX]
        if code == 0:
            return AttemptOutcome(JobStatus.COMPLETED, said)
        how = f"was ended by signal {-code}" if code < 0 else f"ended with {code}"
        words_ = f"{what} {how}" + (f": {said}" if said else "")
        return AttemptOutcome(JobStatus.ERROR, words_, "command_failed")

    def _watch(self, over: Callable[[], bool], fds: Sequence[int]) -> AttemptOutcome | None:
        """Sleep until the task is over, with heartbeats in between. Return what ends the attempt
        early, or None. `fds` become readable when there is news of the task, or a stop.
        """
        beat_s = time.monotonic() + self._every_s
        listener: Listener | None = None
        away = False
        with ExitStack() as stack:
            while not over():
                if listener is None:
                    listener = self._listen(stack)
                    # While the store was away, nobody reported what became of the job.
                    beat_s = time.monotonic() if away and listener is not None else beat_s
                    away = listener is None
                now_s = time.monotonic()
                if now_s >= self._end_s:
                    words = f"it took longer than {self._job.timeout_sec:g} s"
                    return AttemptOutcome(JobStatus.ERROR, words, TIMED_OUT)
                left_s = min(beat_s, self._end_s) - now_s
                if listener is None:
                    woken = Woken(False, frozenset(readable(fds, min(left_s, _RETRY_LISTEN_S))))
                else:
                    woken = listener.wait(left_s, also=fds)
                if self._stop_fd in woken.ready:
                    return AttemptOutcome(None, "the worker was stopped")
                if woken.notified or time.monotonic() >= beat_s:
                    beat_s = time.monotonic() + self._every_s
                    if (lost := self._beat()) is not None:
                        return AttemptOutcome(None, lost, lost=True)
        return None

    def _listen(self, stack: ExitStack) -> Listener | None:
        """Listen for news of the job; None while the store is away: the task goes on without."""
        try:
            return stack.enter_context(self._hf.store.listen([job_topic(self._job.job_id)]))
        except Unavailable:
            return None

    def _beat(self) -> str | None:
        """Send a heartbeat and the progress; say why when the job is no longer this worker's."""
        job = self._job
        try:
            self._hf.jobs.heartbeat(job.job_id, token=job.token or 0)
            if self._last_line and self._last_line != self._published_line:
                self._published_line = self._last_line
                detail = self._last_line[:RESULT_CHARS_MAX]
                self._hf.job_events.publish(job.job_id, "progress", detail=detail, token=job.token)
                self._on_progress()
        except (Lost, Refused) as error:
            return None if self._ended_itself() else error.message
        except HoldfastError:
            # The store is away for a moment; the next heartbeat asks again.
            return None
        return None

    def _ended_itself(self) -> bool:
        """Did the task report the end of its job by an event? Then it may finish in peace."""
        try:
            return self._hf.job_events.ended_by_event(self._job)
        except HoldfastError:
            return False

    def _take_line(self, line: bytes) -> None:
        text = line.decode(errors="backslashreplace").rstrip()
        self._last_line = text.strip() or self._last_line
        if self._request.on_output is not None:
            self._request.on_output(text)

    def _stdin(self) -> bytes:
        if self._request.stdin == "none":
            return b""
        if self._request.stdin == "prompt":
            return self._job.prompt.encode()
        return to_json(shown(self._job)) + b"\n"

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
        if self._registry_dir is not None:
            own[REGISTRY_DIR_ENV] = os.path.abspath(self._registry_dir)
        elif self._hf.settings.store is not None:
            own["HOLDFAST_STORE"] = self._hf.settings.store
        # A worker of a store may run inside a worker of a folder. Its commands must not use that
        # folder.
        inherited = {name: value for name, value in os.environ.items() if name != REGISTRY_DIR_ENV}
        return {**inherited, **own}
