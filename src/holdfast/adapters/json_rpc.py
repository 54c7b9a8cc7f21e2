"""A program that speaks JSON-RPC on its standard input and output, a message in each line.

It runs in custody, with a session of its own: the program and all that it starts are one process
tree, which ends when this process dies. Its note names the tree before the program begins, so that
the next gateway ends what a killed one has left.
"""

import contextlib
import fcntl
import logging
import os
import re
import select
import struct
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

import msgspec

from holdfast.adapters.command import ProcessNote, how_it_ended
from holdfast.kernel import faults
from holdfast.kernel.errors import (
    HoldfastError,
    NotFound,
    NotReceived,
    Unavailable,
    UpstreamUnavailable,
)
from holdfast.kernel.limits import PROTOCOL_LINE_BYTES_MAX, PROTOCOL_RECEIPT_S
from holdfast.processes.command import Command, two_pipes
from holdfast.processes.procfs import Procfs
from holdfast.processes.syscalls import pipe

_GRACE_S = 5.0
"""How long the tree may take to end after SIGTERM."""
_CHUNK_BYTES = 64 << 10
_SAID_BYTES = 8 << 10
_SAID_LINES = 4
_LAST_OUTPUT_S = 0.5
"""How long to read on when the program has ended: what it started may keep the pipe open."""
_HEAD_BYTES = 512
_NOTIFICATION = re.compile(rb'^\s*\{(?:"jsonrpc":\s*"2\.0",\s*)?"method":\s*"[^"]*",\s*"params"')
"""How a message begins that no answer belongs to."""
_UNPRINTABLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_METHOD_NOT_FOUND = -32601
_log = logging.getLogger("holdfast.gateway")


class RpcError(Exception):
    """The program answered a request with an error."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        more = "" if data is None else f" ({msgspec.json.encode(data).decode()[:500]})"
        super().__init__(f"{message[:1000]}{more}")
        self.code = code


class RpcMessage(NamedTuple):
    """A notification of the program, or a request, which has an id."""

    method: str
    params: dict[str, Any]
    id: int | str | None = None


class _Error(msgspec.Struct):
    code: int = 0
    message: str = ""
    data: Any = None


class _Line(msgspec.Struct):
    id: int | str | None = None
    method: str | None = None
    params: Any = None
    result: Any = None
    error: _Error | None = None


Done = Callable[[Any, Exception | None], None]
"""Gets the result of a request, or why there is none: RpcError, or AgentGone's parent."""


class RpcProgram:
    """A running program. `heard` gets its notifications and requests, in order and in one thread,
    and `ended` is called there when no process of it is left. `environment` replaces that of this
    process. Raises Unavailable when it cannot be started.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        cwd: str | None,
        note: ProcessNote,
        processes: Procfs,
        heard: Callable[[RpcMessage], None],
        ended: Callable[[], None],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._name = os.path.basename(words[0])
        self._note, self._trees = note, processes.trees
        self._heard, self._when_ended = heard, ended
        self._mutex = threading.Lock()
        self._writing = threading.Lock()
        self._waiting: dict[int, Done] = {}
        self._last_id = 0
        self._said = b""
        self._unread = bytearray()
        self._skipping = False
        self._closed = False
        self.ending = False
        """Is nothing read from it any more, or is it being ended?"""
        self.over = threading.Event()
        """Set when no process of its tree is left."""
        self.status: int | None = None
        """Its exit status, negative for a signal, once it has ended and somebody saw that."""
        self.why = ""
        """How it ended, once it has. Before that, why it is ended by us."""
        self._start(words, cwd, environment)
        self._thread = threading.Thread(
            target=self._read, name="holdfast-agent-output", daemon=True
        )
        self._thread.start()

    def call(
        self,
        method: str,
        params: dict[str, Any],
        timeout_s: float,
        *,
        first: Callable[[Any], None] = lambda _: None,
        once: bool = False,
    ) -> Any:
        """Make a request, and return its result. `first` gets the result before anything that the
        program wrote behind it is heard. With `once`, a program that does not read the request
        will not get it later: see `await_read`. Raises RpcError, NotReceived when there is no
        answer in time, and UpstreamUnavailable when the program ends before.
        """
        answered = threading.Event()
        answer: list[tuple[Any, Exception | None]] = []

        def done(result: Any, error: Exception | None) -> None:
            if error is None:
                first(result)
            answer.append((result, error))
            answered.set()

        self.begin(method, params, done)
        if once:
            self.await_read()
        if not answered.wait(timeout_s):
            raise NotReceived(
                f"it did not answer `{method}` within {timeout_s:g} s", outcome="unknown"
            )
        [(result, error)] = answer
        if error is not None:
            raise error
        return result

    def begin(self, method: str, params: dict[str, Any], done: Done) -> None:
        """Make a request; `done` is called when it is answered, or the program has ended. Raises
        UpstreamUnavailable when it could not be written: nothing was requested then.
        """
        with self._mutex:
            if self._closed:
                raise self._gone("none")
            self._last_id += 1
            request_id = self._last_id
            self._waiting[request_id] = done
        try:
            self._send({"id": request_id, "method": method, "params": params})
        except BaseException:
            with self._mutex:
                self._waiting.pop(request_id, None)
            raise

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Raises UpstreamUnavailable."""
        self._send({"method": method, "params": params})

    def respond(self, request_id: int | str, result: dict[str, Any]) -> None:
        """Answer a request of the program. Raises UpstreamUnavailable."""
        self._send({"id": request_id, "result": result})

    def refuse(self, request_id: int | str, method: str) -> None:
        """Answer a request that is not served. Raises UpstreamUnavailable."""
        error = {"code": _METHOD_NOT_FOUND, "message": f"{method[:100]} is not offered"}
        self._send({"id": request_id, "error": error})

    def await_read(self) -> None:
        """Return when the program has read all that was written to it. Raises NotReceived after the
        time: then it gets no part of that any more, and is ended.
        """
        end_s = time.monotonic() + PROTOCOL_RECEIPT_S
        while self._unread_by_it() and not self.over.wait(0.002):
            if time.monotonic() > end_s and self._take_back():
                why = f"it did not read its input for {PROTOCOL_RECEIPT_S:g} s"
                self.end(why)
                raise NotReceived(f"the agent has not received it: {why}", outcome="none")

    def end(self, why: str = "") -> None:
        """End its whole tree: SIGTERM, then SIGKILL. Does not wait: see `over`."""
        with self._mutex:
            self.why = self.why or why
            self.ending = True
            if not self._closed:
                self._command.end_tree()

    @property
    def said(self) -> str:
        """The last lines on its standard error, and those on its output that are no messages."""
        text = _UNPRINTABLE.sub("", self._said.decode("utf-8", "replace"))
        return "\n".join(text.strip().splitlines()[-_SAID_LINES:])

    def _start(
        self, words: Sequence[str], cwd: str | None, environment: Mapping[str, str] | None
    ) -> None:
        with contextlib.ExitStack() as undo:
            its_input, self._input, self._output, its_output = two_pipes()
            theirs, ours = [its_input, its_output], [self._input, self._output]
            undo.callback(_close_all, ours)
            with contextlib.ExitStack() as inherited:
                inherited.callback(_close_all, theirs)
                try:
                    self._errors, its_errors = pipe()
                except OSError as error:
                    raise Unavailable(f"no pipe can be made: {error}", outcome="none") from None
                theirs.append(its_errors)
                ours.append(self._errors)
                self._command = Command(
                    words,
                    leader=True,
                    bound=True,
                    grace_s=_GRACE_S,
                    cwd=cwd,
                    environment=environment,
                    stdin=its_input,
                    stdout=its_output,
                    stderr=its_errors,
                )
            undo.callback(self._forget)
            try:
                tree = self._command.enter(self._trees)
                faults.reach("protocol.started")
                self._note.write(self._command.pid, tree)
                faults.reach("protocol.noted")
                self._command.begin(self._trees, {})
                if not self._command.executed():
                    assert self._command.unfit is not None
                    self._command.wait()
                    self._command.wait_for_tree()
                    raise self._command.unfit
            except (OSError, NotFound) as error:
                raise Unavailable(f"{words[0]} cannot be run: {error}", outcome="none") from None
            os.set_blocking(self._input, False)
            undo.pop_all()
        faults.reach("protocol.begun")

    def _forget(self) -> None:
        self._command.close()
        if self._command.gone:
            self._note.remove()

    def _send(self, message: dict[str, Any]) -> None:
        line = msgspec.json.encode({"jsonrpc": "2.0", **message}) + b"\n"
        view, end_s = memoryview(line), time.monotonic() + PROTOCOL_RECEIPT_S
        with self._writing:
            while view:
                with self._mutex:
                    # The descriptor may be another file's once the program is over.
                    if self._closed:
                        raise self._gone("none")
                    try:
                        view = view[os.write(self._input, view) :]
                        continue
                    except BlockingIOError:
                        pass
                    except OSError:
                        raise self._gone("none") from None
                if self.over.wait(0.005) or time.monotonic() > end_s:
                    # It must not get another message behind a part of this one.
                    self.end("it does not read its input")
                    raise NotReceived(
                        "the agent does not read its input: its processes are ended",
                        outcome="none",
                    )

    def _gone(self, outcome: str) -> UpstreamUnavailable:
        return UpstreamUnavailable(
            f"the agent has ended ({self.why or 'just now'})", outcome=outcome
        )

    def _unread_by_it(self) -> int:
        with self._mutex:
            if self._closed:
                return 0
            size = fcntl.ioctl(self._input, termios.FIONREAD, b"\0" * 4)
        return int(struct.unpack("i", size)[0])

    def _take_back(self) -> bool:
        """Take what it has not read out of the pipe. True if there was anything: then it has not
        read the end of the last line.
        """
        with self._mutex:
            if self._closed:
                return False
            reader = os.open(f"/proc/self/fd/{self._input}", os.O_RDONLY | os.O_NONBLOCK)
        taken = False
        try:
            while os.read(reader, _CHUNK_BYTES):
                taken = True
        except BlockingIOError:
            pass
        finally:
            os.close(reader)
        return taken

    def _read(self) -> None:
        try:
            self._read_until_over()
        except Exception:  # noqa: BLE001 - its end must be noticed whatever happens
            _log.exception("output of %s", self._name)
        self._finish()

    def _read_until_over(self) -> None:
        waiting, end_s = select.poll(), None
        for fd in (self._output, self._errors, self._command.fd):
            waiting.register(fd, select.POLLIN)
        while end_s is None or time.monotonic() < end_s:
            ready = waiting.poll(None if end_s is None else 0)
            if end_s is not None and not ready:
                return
            for fd, _ in ready:
                if fd == self._command.fd:
                    if self._command.poll() is not None or self._command.unguarded:
                        waiting.unregister(fd)
                        end_s = time.monotonic() + _LAST_OUTPUT_S
                    continue
                data = os.read(fd, _CHUNK_BYTES)
                if fd == self._errors:
                    self._say(data)
                else:
                    self._take(data)
                if not data:
                    waiting.unregister(fd)
                    if fd == self._output:
                        # It can answer nothing any more; most programs are about to end.
                        end_s = end_s or time.monotonic() + _LAST_OUTPUT_S

    def _finish(self) -> None:
        self.ending = True
        self._drop_waiting()
        self.end("it closed its output")
        while not self._command.wait_for_tree():
            # Its guardian was killed, and SIGKILL has not ended the whole tree yet.
            pass
        status = self._command.wait()
        self.status = None if self._command.unseen else status
        how = how_it_ended(status, self.said)
        if self._command.unseen:
            how = "its guardian process was killed: the exit status is unknown"
        with self._mutex:
            # Ended by us: the reason tells more than the signal.
            asked = self.why not in ("", "it closed its output")
            self.why = f"{self.why}; {how}" if asked else how
            self._closed = True
            self._forget()
            for fd in (self._input, self._output, self._errors):
                os.close(fd)
        self._drop_waiting()
        self.over.set()
        self._when_ended()

    def _drop_waiting(self) -> None:
        """Tell all requests that no answer comes."""
        while True:
            with self._mutex:
                if not self._waiting:
                    return
                _, done = self._waiting.popitem()
            self._report(done, None, self._gone("unknown"))

    def _say(self, data: bytes) -> None:
        self._said = (self._said + data)[-_SAID_BYTES:]

    def _take(self, data: bytes) -> None:
        """Take a piece of the output. Of a line that is too long, only the beginning is kept."""
        while data:
            line, end, data = data.partition(b"\n")
            if not self._skipping:
                self._unread += line
            if not end:
                if len(self._unread) > PROTOCOL_LINE_BYTES_MAX and not self._skipping:
                    self._skip()
                return
            if not self._skipping and self._unread.strip():
                self._take_line(bytes(self._unread))
            self._unread.clear()
            self._skipping = False

    def _skip(self) -> None:
        """Pass over the rest of a line. Whoever waits for an answer in it would wait for ever."""
        head = bytes(self._unread[:_HEAD_BYTES])
        self._unread.clear()
        self._skipping = True
        _log.warning("%s sent a line of more than %d bytes", self._name, PROTOCOL_LINE_BYTES_MAX)
        if _NOTIFICATION.match(head) is None:
            self.end(f"it sent a message of more than {PROTOCOL_LINE_BYTES_MAX} bytes")

    def _take_line(self, data: bytes) -> None:
        try:
            line = msgspec.json.decode(data, type=_Line)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            self._say(data[-_SAID_BYTES:] + b"\n")
            return
        if line.method is not None:
            params = line.params if isinstance(line.params, dict) else {}
            try:
                self._heard(RpcMessage(line.method, params, line.id))
            except Exception as error:  # noqa: BLE001 - a strange message must not end the conversation
                _log.warning("%s: message %s: %r", self._name, line.method[:100], error)
            return
        with self._mutex:
            done = self._waiting.pop(line.id, None) if isinstance(line.id, int) else None
        if done is None:
            return
        failed = line.error
        why = None if failed is None else RpcError(failed.code, failed.message, failed.data)
        self._report(done, line.result, why)

    def _report(self, done: Done, result: Any, error: Exception | None) -> None:
        try:
            done(result, error)
        except HoldfastError as failure:
            _log.warning("%s: %s", self._name, failure.message)
        except Exception as failure:  # noqa: BLE001 - as above
            _log.warning("%s: answer: %r", self._name, failure)


def client_info() -> dict[str, str]:
    """Who we are, as the handshakes of these protocols say it."""
    return {"name": "holdfast", "title": "Holdfast", "version": version("holdfast")}


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
