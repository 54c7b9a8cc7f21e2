"""An agent that the gateway runs and talks to in a protocol.

The agent is started at the first look, and again with its conversation whenever it has ended. The
conversation is the instance: prompts that wait stay meant for it when the agent's process is
replaced. Another conversation is another instance.

The agent gets one prompt at a time: some agents hang, or drop the first one, when they get a second
one. A prompt counts as delivered when the agent has read it, and as answered when the protocol says
that its turn has ended. A prompt whose agent died is never sent again.
"""

import logging
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

from holdfast.adapters.agent_environment import read_environment
from holdfast.adapters.agent_protocol import (
    AgentProtocol,
    NotOpened,
    ProtocolRequest,
    Turn,
    TurnEnd,
)
from holdfast.adapters.command import ProcessNote
from holdfast.adapters.gateway_folder import Conversation, GatewayFolder, ProgramEnd
from holdfast.adapters.json_rpc import RpcError, RpcMessage, RpcProgram
from holdfast.domains.gateway.adapter import (
    AcpSpec,
    Adapter,
    Answer,
    AppServerSpec,
    Delivery,
    Observation,
)
from holdfast.domains.gateway.state import AgentState, Question
from holdfast.kernel.clock import SystemClock
from holdfast.kernel.errors import (
    Fenced,
    HoldfastError,
    InvalidValue,
    NotFound,
    Unavailable,
    UpstreamUnavailable,
)
from holdfast.kernel.limits import (
    PROTOCOL_CANCEL_S,
    PROTOCOL_RETRY_MAX_S,
    PROTOCOL_START_S,
    PROTOCOL_STEADY_S,
    QUESTION_CHARS,
)
from holdfast.kernel.text import clipped
from holdfast.processes.procfs import Procfs

_TICK_S = 0.2
_LEFT_S = 5.0
"""How long the processes that an earlier gateway left may take to end after SIGTERM."""
_CALLS_MAX = 64
_DETAIL_CHARS = 16 << 10
_FAILURES_MAX = 10
_log = logging.getLogger("holdfast.gateway")


class _Asked(NamedTuple):
    question: Question
    key: str
    request_id: int | str


class _Request(NamedTuple):
    request: ProtocolRequest
    replies: dict[str, str]
    expires_s: float


class ProtocolAgent(Adapter):
    """An agent behind a protocol. `folder` is the gateway's, which keeps the conversation and the
    note of the agent's processes.
    """

    def __init__(
        self,
        protocol: AgentProtocol,
        spec: AcpSpec | AppServerSpec,
        *,
        folder: GatewayFolder,
        processes: Procfs,
        start_within_s: float = PROTOCOL_START_S,
        cancel_within_s: float = PROTOCOL_CANCEL_S,
    ) -> None:
        if not spec.command:
            raise InvalidValue("there is no command: give the program behind --", field="command")
        self.backend = protocol.backend
        self._protocol, self._spec, self._folder = protocol, spec, folder
        self._processes = processes
        self._note = ProcessNote(folder.agent_process, processes)
        self._start_within_s, self._cancel_within_s = start_within_s, cancel_within_s
        self._cwd = os.path.abspath(spec.working_directory or os.getcwd())
        self._clock = SystemClock()
        # Guards everything below. `_wake` is notified of a change that a thread here waits for.
        self._wake = threading.Condition()
        self._changed: Callable[[], None] = lambda: None
        self._keeper: threading.Thread | None = None
        self._closing = False
        self._conversation = Conversation(conversation_id="", program="")
        self._program: RpcProgram | None = None
        self._state = AgentState.STARTING
        self._detail = "it is started"
        self._reason = ""
        self._turn: Turn | None = None
        self._calls: dict[str, str] = {}
        self._asked: dict[str, _Asked] = {}
        self._requests: dict[int | str, _Request] = {}
        self._heard_s = 0.0

    def inspect(self) -> Observation:
        with self._wake:
            if self._keeper is None and not self._closing:
                # Not before the first look: by then this process is the gateway that serves.
                self._conversation = self._recorded()
                self._keeper = threading.Thread(
                    target=self._keep, name="holdfast-agent", daemon=True
                )
                self._keeper.start()
            return self._seen()

    def check(self, prompt: str) -> None:
        """Every prompt is delivered unchanged."""

    def deliver(self, prompt: str, instance_id: str) -> Delivery:
        with self._wake:
            seen, program, session_id = self._seen(), self._program, self._conversation.session_id
            if seen.instance_id != instance_id or seen.state is not AgentState.READY:
                why = seen.detail or f"it is {seen.state}"
                raise Fenced(f"nothing was delivered: {why}", outcome="none")
            assert program is not None and session_id is not None
            self._save(prompted=True)
            turn = self._turn = Turn(self._end_turn)
        try:
            self._protocol.prompt(program, session_id, prompt, turn)
        except UpstreamUnavailable as error:
            if error.fields.get("outcome") != "none":
                # The agent may have it: the turn ends with the agent.
                raise
            self._withdraw(turn)
            if program.ending:
                raise Fenced(f"nothing was delivered: {error.message}", outcome="none") from None
            raise
        except BaseException:
            self._withdraw(turn)
            raise
        return Delivery(turn)

    def answer(self, delivery: Delivery, stop: threading.Event) -> Answer:
        turn: Turn = delivery.handle
        timeout_s, late = self._spec.answer_timeout_s, False
        end_s = time.monotonic() + timeout_s
        while turn.end is None and not stop.is_set():
            with self._wake:
                self._wake.wait_for(lambda: turn.end is not None, _TICK_S)
            if not late and time.monotonic() > end_s:
                late = True
                with suppress(UpstreamUnavailable):
                    self._cancel(turn)
            if turn.cancel_by_s is not None and time.monotonic() > turn.cancel_by_s:
                turn.cancel_by_s = None
                self._end_program(f"it did not stop within {self._cancel_within_s:g} s")
        facts: dict[str, Any] = {"session_id": self._conversation.session_id}
        answer = Answer(turn.text, "protocol", facts=facts)
        if turn.end is None:
            return answer._replace(known=False, code="stopped", detail="the gateway was stopped")
        if turn.end.stop_reason:
            facts["stop_reason"] = turn.end.stop_reason
        if late:
            return answer._replace(
                code="timeout", detail=f"it was received, and not answered within {timeout_s:g} s"
            )
        return answer._replace(code=turn.end.code, detail=turn.end.detail)

    def interrupt(self, instance_id: str) -> bool:
        with self._wake:
            seen, turn = self._seen(), self._turn
            if seen.instance_id != instance_id:
                raise Fenced("nothing was sent: it is another conversation", outcome="none")
            if turn is None and not self._asked:
                return False
        self._cancel(turn)
        return True

    def reply(self, question_id: str, reply: str, instance_id: str) -> None:
        with self._wake:
            asked, program = self._asked.pop(question_id, None), self._program
            if asked is None or program is None or self._seen().instance_id != instance_id:
                raise NotFound("the agent asks this no more", question_id=question_id[:128])
            one = self._requests[asked.request_id]
            one.replies[asked.key] = reply
            if any(other.request_id == asked.request_id for other in self._asked.values()):
                return
            del self._requests[asked.request_id]
        program.respond(asked.request_id, one.request.result(one.replies))
        self._changed()

    def listen(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        changed()

    def close(self) -> None:
        with self._wake:
            self._closing = True
            self._wake.notify_all()
            keeper = self._keeper
        self._end_program("the gateway was stopped")
        if keeper is not None:
            keeper.join()

    def _seen(self) -> Observation:
        conversation = self._conversation
        if self._state is AgentState.EXITED:
            return Observation(
                None,
                AgentState.EXITED,
                self._detail,
                self._reason,
                session_id=conversation.session_id,
            )
        state, detail, activity = self._state, self._detail, ""
        if self._turn is None and self._program is not None and self._program.ending:
            state, detail = AgentState.STARTING, "it has ended, and is started again"
        elif self._asked:
            state, detail = AgentState.ASKING, "it waits for an answer to its question"
        elif self._turn is not None:
            state, detail = AgentState.WORKING, "it works"
            activity = next(reversed(self._calls.values()), "")
        return Observation(
            f"{self.backend}:{conversation.conversation_id}",
            state,
            detail,
            questions=tuple(one.question for one in self._asked.values()),
            activity=activity,
            session_id=conversation.session_id,
        )

    def _recorded(self) -> Conversation:
        """The conversation to go on with, or a new one. One that the settings name is found by its
        own name, and counts as prompted: it must not be replaced by another.
        """
        given = self._spec.session_id or None
        program = f"{self.backend} {self._spec.command[0]}"
        recorded = self._folder.conversation()
        if given is not None:
            return Conversation(
                conversation_id=f"given-{given}",
                session_id=given,
                prompted=True,
                program=program,
                folder=self._cwd,
            )
        if recorded is not None and (recorded.program, recorded.folder) == (program, self._cwd):
            return recorded
        return self._new_conversation()

    def _new_conversation(self) -> Conversation:
        return Conversation(
            conversation_id=secrets.token_hex(8),
            program=f"{self.backend} {self._spec.command[0]}",
            folder=self._cwd,
        )

    def _save(self, **changed: Any) -> None:
        """Record the conversation, if that changes it. Raises UpstreamUnavailable."""
        before = self._conversation
        fields = {name: getattr(before, name) for name in before.__struct_fields__}
        after = Conversation(**{**fields, **changed})
        if after == before:
            return
        try:
            self._folder.write_conversation(after)
        except OSError as error:
            raise UpstreamUnavailable(
                f"the conversation cannot be noted in {self._folder.run}: {error}", outcome="none"
            ) from None
        self._conversation = after

    def _keep(self) -> None:
        """Run the agent, and run it again when it has ended, until the adapter is closed."""
        failures = 0
        while not self._closing:
            began_s = time.monotonic()
            try:
                end = self._run()
                why, self._reason = f"it ended ({end})", "process_dead"
            except NotOpened as error:
                end, self._reason = str(error), "not_started"
                why = end
            except Exception as error:  # noqa: BLE001 - without this thread the agent would never return
                message = error.message if isinstance(error, HoldfastError) else repr(error)
                why, end, self._reason = message, message, "not_started"
            self._note_end(why)
            served = self._reason == "process_dead"
            steady = served and time.monotonic() - began_s > PROTOCOL_STEADY_S
            failures = 0 if steady else min(failures + 1, _FAILURES_MAX)
            # The first end may be an accident, so the agent is back at once.
            pause_s = 0.0 if failures <= served else min(2.0**failures / 2, PROTOCOL_RETRY_MAX_S)
            again = f"it is started again in {pause_s:g} s" if pause_s else "it is started again"
            with self._wake:
                self._program = None
                self._state = AgentState.EXITED if pause_s else AgentState.STARTING
                self._detail = f"{why}; {again}"
                if not self._closing:
                    _log.warning("agent %s: %s", self._spec.command[0], self._detail)
                self._drop_all(
                    TurnEnd("agent_gone", f"it was received, and the agent ended: {why}")
                )
            self._changed()
            with self._wake:
                self._wake.wait_for(lambda: self._closing, pause_s)

    def _note_end(self, why: str) -> None:
        """Keep how it ended, for people; without disk space that is only missed."""
        program = self._program
        status = None if program is None else program.status
        end = ProgramEnd(ended_at=self._clock.now(), why=why, exit_status=status)
        with suppress(OSError):
            self._folder.write_program_end(end)

    def _run(self) -> str:
        """Start the agent, and return how it ended after it could be used. Raises NotOpened and
        other errors for one that could not.
        """
        self._end_left()
        environment = self._environment()
        self._check_there(environment)
        program = RpcProgram(
            self._spec.command,
            cwd=self._cwd,
            note=self._note,
            processes=self._processes,
            heard=self._hear,
            ended=self._notify,
            environment=environment,
        )
        with self._wake:
            # One that did not start takes no prompts until it has started.
            self._program = program
            if self._closing:
                program.end()
        try:
            self._open(program)
            self._set_ready()
            while not program.over.is_set():
                self._deny_expired(program)
                with self._wake:
                    if not program.over.is_set():
                        self._wake.wait(self._until_next_expiry())
        except (RpcError, HoldfastError) as error:
            # Its end, if it has ended, says more than the request that was not answered.
            ended = program.over.wait(_TICK_S)
            message = error.message if isinstance(error, HoldfastError) else str(error)
            raise NotOpened(
                f"it ended at its start ({program.why})" if ended else message
            ) from None
        finally:
            program.end()
            program.over.wait()
        return program.why

    def _end_left(self) -> None:
        if left := self._note.end_named(_LEFT_S):
            pids = ", ".join(map(str, left))
            raise NotOpened(
                f"pid {pids}, which an earlier gateway started, does not end: end it by hand"
            )
        self._processes.trees.sweep()

    def _environment(self) -> dict[str, str] | None:
        """The variables that it is started with; None: those of this process."""
        path = self._spec.environment
        if not path:
            return None
        try:
            return read_environment(path)
        except OSError as error:
            raise NotOpened(
                f"its environment {path} cannot be read ({error.strerror}): `holdfast agents "
                "restart` writes it again"
            ) from None

    def _check_there(self, environment: Mapping[str, str] | None) -> None:
        name = self._spec.command[0]
        around = os.environ if environment is None else environment
        # A relative path is one in its folder, and joining leaves an absolute one as it is.
        program = os.path.join(self._cwd, name) if os.sep in name else name
        if shutil.which(program, path=around.get("PATH")) is None:
            raise NotOpened(f"there is no program {name}: install it, or give its path")
        if not os.path.isdir(self._cwd):
            raise NotOpened(f"there is no folder {self._cwd} to run it in")

    def _open(self, program: RpcProgram) -> None:
        """Begin or resume the conversation."""
        self._protocol.greet(program, self._start_within_s)
        conversation = self._conversation
        resumed = conversation.session_id if conversation.prompted else None
        try:
            opened = self._protocol.open(program, self._cwd, resumed, self._start_within_s)
        except NotOpened as error:
            if not error.lost or self._spec.session_id:
                raise
            _log.warning("conversation %s is lost: %s", resumed, error)
            with self._wake:
                self._conversation = self._new_conversation()
            opened = self._protocol.open(program, self._cwd, None, self._start_within_s)
        with self._wake:
            self._save(session_id=opened.session_id)
        if resumed is not None:
            # Some agents replay the conversation behind their answer: wait until they are silent.
            opened_s = time.monotonic()
            end_s = opened_s + self._start_within_s
            while time.monotonic() < min(max(self._heard_s, opened_s) + opened.settle_s, end_s):
                if program.over.wait(0.05):
                    return

    def _set_ready(self) -> None:
        with self._wake:
            self._state, self._detail = AgentState.READY, ""
            self._calls.clear()
        self._changed()

    def _hear(self, message: RpcMessage) -> None:
        """Take a notification or a request of the agent, in the thread that reads its output."""
        self._heard_s = time.monotonic()
        if message.id is not None:
            self._hear_request(message)
            return
        news = self._protocol.news(self._conversation.session_id, message)
        if news is None:
            return
        with self._wake:
            before = self._seen()
            turn = self._turn
            if turn is not None and news.turn in (None, turn.turn_id):
                if news.replay:
                    turn.forget()
                if news.text:
                    turn.add(news.part, news.text, whole=news.whole)
            if news.call:
                self._calls.pop(news.call, None)
                if news.activity and len(self._calls) < _CALLS_MAX:
                    self._calls[news.call] = clipped(news.activity, QUESTION_CHARS)
            if news.resolved is not None:
                self._forget_request(news.resolved)
            differs = before != self._seen()
        if turn is not None and news.end is not None and news.turn in (None, turn.turn_id):
            turn.finish(news.end)
        elif differs:
            self._changed()

    def _hear_request(self, message: RpcMessage) -> None:
        request_id, program = message.id, self._program
        request = self._protocol.request(message)
        if program is None or request_id is None:
            return
        if request is None:
            program.refuse(request_id, message.method)
            return
        patience_s = self._spec.question_timeout_s
        asked_at = self._clock.now()
        with self._wake:
            expires_s = time.monotonic() + patience_s
            self._requests[request_id] = _Request(request, {}, expires_s)
            for one in request.questions:
                question = Question(
                    question_id=secrets.token_hex(6),
                    kind=one.kind,
                    subject=clipped(one.subject, QUESTION_CHARS),
                    detail=one.detail[:_DETAIL_CHARS],
                    choices=one.choices,
                    free_text=one.free_text,
                    asked_at=asked_at,
                    expires_at=asked_at + timedelta(seconds=patience_s),
                )
                self._asked[question.question_id] = _Asked(question, one.key, request_id)
            self._wake.notify_all()
        if not request.questions:
            self._respond(program, request_id, request.result({}))
        self._changed()

    def _until_next_expiry(self) -> float | None:
        if not self._requests:
            return None
        return max(min(one.expires_s for one in self._requests.values()) - time.monotonic(), 0.0)

    def _deny_expired(self, program: RpcProgram) -> None:
        now_s = time.monotonic()
        with self._wake:
            expired = {key: one for key, one in self._requests.items() if one.expires_s <= now_s}
            for request_id in expired:
                self._forget_request(request_id)
        for request_id, one in expired.items():
            self._respond(program, request_id, one.request.result(one.replies))
        if expired:
            self._changed()

    def _respond(self, program: RpcProgram, request_id: int | str, result: dict[str, Any]) -> None:
        with suppress(Unavailable):
            program.respond(request_id, result)

    def _forget_request(self, request_id: int | str) -> None:
        self._requests.pop(request_id, None)
        self._asked = {key: one for key, one in self._asked.items() if one.request_id != request_id}

    def _cancel(self, turn: Turn | None) -> None:
        """Ask the agent to stop. What it asks is withdrawn by that."""
        with self._wake:
            program, session_id = self._program, self._conversation.session_id
            requests, self._requests, self._asked = self._requests, {}, {}
            if turn is not None and turn.cancel_by_s is None:
                turn.cancel_by_s = time.monotonic() + self._cancel_within_s
        if program is None or session_id is None:
            return
        self._protocol.cancel(program, session_id, turn)
        for request_id, one in requests.items():
            self._respond(program, request_id, one.request.cancelled)
        self._changed()

    def _withdraw(self, turn: Turn) -> None:
        with self._wake:
            if self._turn is turn:
                self._turn = None

    def _end_turn(self, turn: Turn, end: TurnEnd) -> None:
        with self._wake:
            if turn.end is None:
                turn.end = end
            if self._turn is turn:
                self._turn = None
                self._calls.clear()
            self._wake.notify_all()
        self._changed()

    def _drop_all(self, end: TurnEnd) -> None:
        """Nothing of an agent that has ended goes on."""
        self._asked, self._requests = {}, {}
        self._calls.clear()
        if self._turn is not None:
            self._turn.end = self._turn.end or end
            self._turn = None
        self._wake.notify_all()

    def _end_program(self, why: str) -> None:
        with self._wake:
            program = self._program
        if program is not None:
            program.end(why)

    def _notify(self) -> None:
        with self._wake:
            self._wake.notify_all()
