"""An agent in a tmux session: prompts are pasted, answers are read from the screen.

The agent's pane is the session's first one. Everything is sent to it under a condition that the
tmux server checks in the same step: the pane still has the process that was looked at, and no other
gateway has marked it. So a session of the same name that replaced it gets nothing, and a gateway
that was replaced sends nothing.

A prompt is sent by a tmux buffer and bracketed paste, never as keys, so that nothing in it is a key
or a command. Enter and the interrupt key are sent by a buffer too: a key that tmux sends goes to
the copy mode while somebody scrolls there, and to every pane of a window with synchronized panes.
The command that pastes also starts a timer in the tmux server, which sends the one Enter. So a
gateway that is killed in between leaves no paste that would be sent together with the next prompt.

A tmux server that does not answer in time may still have the session. If it does not answer before
the paste, nothing has happened, and the prompt waits. If it does not answer the paste, nobody knows
whether it pasted, and the paste is not repeated. The condition contains a deadline: a server that
was stopped and goes on does not paste what the gateway has given up.
"""

import contextlib
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from holdfast.adapters import pane_owner, tmux_pane
from holdfast.adapters.pane_owner import PaneAgent
from holdfast.adapters.tmux_pane import AGENT, MARK, UNSENT, PromptBuffers, Screen, TmuxServer
from holdfast.domains.agents.ports import TmuxAddress
from holdfast.domains.gateway.activity import Judgement
from holdfast.domains.gateway.adapter import Adapter, Answer, Delivery, Observation, TmuxSpec
from holdfast.domains.gateway.state import AgentState
from holdfast.kernel import faults
from holdfast.kernel.agent_adapter import ANSWER_TIMEOUT_S, SETTLE_S
from holdfast.kernel.errors import Fenced, InvalidValue, UpstreamUnavailable
from holdfast.kernel.holder import Holder, Liveness
from holdfast.kernel.limits import TMUX_ANSWER_S, TMUX_PASTE_S
from holdfast.processes.procfs import Procfs

_ENTER_WITHIN_S = 1.0
"""How long to wait for that timer before it counts as lost."""
_TMUX_SINCE = (3, 2)
"""The first tmux whose `run-shell` can run tmux commands (-C) after a delay (-d)."""
_REFUSAL = "display-message -p refused"
_STAY_S = 5.0
"""A program that keeps the foreground for so long is the agent, though it was never seen ready."""
_SAMPLE_S = 0.1
_NOT_FOREGROUND = "the agent's process is not in the foreground of pane {0.pane_id}: {0.program} is"
_UNBRACKETED_BYTES_MAX = 4000
"""A terminal in line mode keeps 4095 bytes of one line, and drops the rest."""


class _Pasted(NamedTuple):
    """A delivery: the screen before it, and the instance that got it."""

    before: Screen
    instance_id: str


class TmuxAgent(Adapter):
    """A tmux session as an agent. `agent` is the name of its gateway, and `folder` holds a prompt
    while tmux reads it. `process` returns the process in the agent's record, if any: nothing is
    typed to another one.
    """

    backend = "tmux"

    def __init__(
        self,
        spec: TmuxSpec,
        *,
        agent: str,
        folder: Path,
        processes: Procfs,
        process: Callable[[], Holder | None] = lambda: None,
        limit_s: float = TMUX_ANSWER_S,
    ) -> None:
        # tmux takes a name that begins with $, @ or % for an id.
        if not spec.session or set(spec.session) & set(":.\n") or spec.session[0] in "$@%":
            raise InvalidValue(
                f"{spec.session!a} cannot be a tmux session's name here: it has no : and no . and "
                "begins with none of $ @ %",
                field="session",
            )
        self._ready = None if spec.ready_regex is None else re.compile(spec.ready_regex)
        self._spec = spec
        self._settle_s = spec.settle_s or SETTLE_S
        self._answer_timeout_s = spec.answer_timeout_s or ANSWER_TIMEOUT_S
        self._recorded = process
        self._processes = processes
        address = TmuxAddress(spec.socket_name or None, spec.socket_path or None)
        self._server = TmuxServer(address, limit_s=limit_s)
        self._mark = pane_owner.own_mark(agent, folder, processes)
        self._marked: Screen | None = None
        self._buffers = PromptBuffers(self._server, folder)
        self._started = False
        self._last: Screen | None = None
        self._glanced: Screen | None = None
        self._calm_since_s = 0.0
        self._launched: str | None = None
        self._launched_s = 0.0

    def inspect(self) -> Observation:
        if not self._started:
            # Not before the first look: by then this process is the gateway that serves.
            self._started = True
            self._buffers.find_left()
        # What is typed is checked again, with a look of its own.
        self._glanced = screen = self._server.glance(self._spec.session, self._glanced)
        if screen is None:
            gone = f"there is no tmux session {self._spec.session} with a live pane"
            return Observation(None, detail=gone)
        if _too_old(screen.version):
            old = f"tmux {screen.version} is too old to deliver a prompt safely: use 3.2 or later"
            return Observation(None, detail=old)
        agent = self._agent(screen)
        if agent.process is None:
            return Observation(None, detail=agent.detail, reason=agent.reason)
        self._claim(screen)
        self._note(screen)
        judgement = self._judge(screen, agent)
        if judgement.state is AgentState.READY or self._has_stayed(agent):
            self._remember(screen, agent)
        return self._seen(Observation(self._instance(screen, agent), *judgement))

    def check(self, prompt: str) -> None:
        """Control characters are refused for every adapter; whether the pane takes pastes is known
        only at delivery.
        """

    def deliver(self, prompt: str, instance_id: str) -> Delivery:
        screen, agent = self._same(instance_id)
        self._note(screen)
        judgement = self._judge(screen, agent)
        if judgement.state is not AgentState.READY:
            raise Fenced(f"nothing was delivered: {judgement.detail}", outcome="none")
        # Without bracketed paste, the terminal would send each line by itself and cut a long one.
        plain = "\n" not in prompt and len(prompt.encode()) <= _UNBRACKETED_BYTES_MAX
        if not plain and not self._server.pastes_bracketed(self._spec.session, screen):
            raise InvalidValue(
                f"the program in tmux session {self._spec.session} has not switched bracketed "
                "paste on, so a prompt of several lines or more than "
                f"{_UNBRACKETED_BYTES_MAX} bytes would arrive in pieces: nothing was delivered",
                outcome="none",
            )
        paste = self._paste(prompt, screen, agent)
        self._await_enter(prompt, screen, paste)
        self._calm_since_s = time.monotonic()
        return Delivery(_Pasted(screen, instance_id))

    def answer(self, delivery: Delivery, stop: threading.Event) -> Answer:
        if self._ready is None:
            # A quiet screen is no sign of an end: agents think, and wait for tools and people.
            return Answer(known=False)
        pasted: _Pasted = delivery.handle
        started_s = time.monotonic()
        while not stop.wait(_SAMPLE_S):
            # A server that does not answer now may answer later, and still have the session.
            with contextlib.suppress(UpstreamUnavailable):
                seen = self._look_for(pasted.instance_id)
                if seen is None:
                    return Answer(
                        code="upstream_unavailable",
                        detail="it was delivered, and then the agent went away",
                    )
                screen, agent = seen
                self._note(screen)
                changed = screen.content != pasted.before.content
                if changed and self._judge(screen, agent).state is AgentState.READY:
                    return Answer(self._server.text_since(pasted.before, screen), "screen")
            if time.monotonic() - started_s > self._answer_timeout_s:
                why = (
                    "it was delivered, and the agent was not ready again within "
                    f"{self._answer_timeout_s:g} s"
                )
                return Answer(code="timeout", detail=why)
        return Answer(known=False, code="stopped", detail="the gateway was stopped")

    def interrupt(self, instance_id: str) -> bool:
        screen, agent = self._same(instance_id)
        if not agent.ready and not agent.busy:
            raise Fenced(f"{_NOT_FOREGROUND.format(screen)}: nothing was sent", outcome="none")
        key = tmux_pane.press(screen, self._spec.interrupt)
        self._run_guarded(screen, key, tmux_pane.is_pane(screen))
        return True

    def close(self) -> None:
        """Remove the mark for the next gateway. The session stays: it is its owner's."""
        if self._marked is not None:
            unmark = f"set-option -pu -t {self._marked.pane_id} {MARK}"
            with contextlib.suppress(UpstreamUnavailable):
                self._run_if(tmux_pane.has_mark(str(self._mark)), self._marked, unmark)

    def _look(self) -> Screen | None:
        return self._server.screen(self._spec.session)

    def _agent(self, screen: Screen) -> PaneAgent:
        recorded = self._recorded()
        if recorded is not None:
            return pane_owner.recorded_agent(recorded, screen, self._processes)
        return pane_owner.foreground_agent(screen, self._processes)

    def _instance(self, screen: Screen, agent: PaneAgent) -> str:
        """Each pid comes with its start time, as pids are used again."""
        server, pane = (
            None if seen is None else seen.start_ticks
            for seen in map(self._processes.process_stat, (screen.server_pid, screen.pane_pid))
        )
        return (
            f"tmux:{screen.server_pid}.{server}:{screen.session_id}.{screen.session_created}:"
            f"{screen.pane_id}.{screen.pane_pid}.{pane}:{agent.process}"
        )

    def _look_for(self, instance_id: str) -> tuple[Screen, PaneAgent] | None:
        """The pane of that instance; None when the instance is not there."""
        screen = self._look()
        if screen is None:
            return None
        agent = self._agent(screen)
        return (screen, agent) if self._instance(screen, agent) == instance_id else None

    def _same(self, instance_id: str) -> tuple[Screen, PaneAgent]:
        """The pane of that instance. Raises Fenced when the instance is not there, or tmux does not
        answer.
        """
        try:
            seen = self._look_for(instance_id)
        except UpstreamUnavailable as error:
            raise Fenced(
                f"it is not known whether the agent is there: nothing was sent ({error.message})",
                outcome="none",
            ) from None
        if seen is None:
            raise Fenced(
                f"tmux session {self._spec.session} is another one than before: nothing was sent",
                outcome="none",
            )
        return seen

    def _claim(self, screen: Screen) -> None:
        """Mark the pane as this gateway's. Raises Held while another gateway that has it is alive.

        Among the gateways of the same agent the last one wins: it became the one that serves before
        its first look.
        """
        found = pane_owner.mark_in(screen.mark)
        if found == self._mark:
            return
        if found is not None and (self._marked is not None or found[:2] != self._mark[:2]):
            liveness = found.liveness(self._processes)
            if liveness is not Liveness.DEAD:
                unmark = f"{screen.tmux} set-option -pu -t {screen.pane_id} {MARK}"
                raise pane_owner.marked_by(self._spec.session, found, liveness, unmark)
        # Compare and set in one step of the server. A text that is no mark is simply replaced.
        unchanged = tmux_pane.has_mark(screen.mark) if found is not None or not screen.mark else "1"
        mark = f"set-option -p -t {screen.pane_id} {MARK} {self._mark}"
        if not self._run_if(unchanged, screen, mark):
            raise UpstreamUnavailable(
                "another gateway is just taking the tmux session: look again", outcome="none"
            )
        self._marked = screen

    def _has_stayed(self, agent: PaneAgent) -> bool:
        """Has a program that a shell started kept the foreground? The short programs that a shell
        runs for its own prompt do not.
        """
        if agent.process != self._launched:
            self._launched, self._launched_s = agent.process, time.monotonic()
        return agent.launched and time.monotonic() - self._launched_s >= _STAY_S

    def _remember(self, screen: Screen, agent: PaneAgent) -> None:
        """Note in tmux which process is the agent, for this gateway and the next."""
        if screen.agent != (note := pane_owner.note_of(agent, screen, self._processes)):
            remember = f"set-option -p -t {screen.pane_id} {AGENT} {note}"
            self._run_if(tmux_pane.has_mark(str(self._mark)), screen, remember)

    def _note(self, screen: Screen) -> None:
        """Note since when the screen has not changed."""
        if self._last is None or self._last.content != screen.content:
            self._last, self._calm_since_s = screen, time.monotonic()

    def _seen(self, seen: Observation) -> Observation:
        """What else is known of the agent."""
        return seen

    def _judge(self, screen: Screen, agent: PaneAgent) -> Judgement:
        """What the agent does, and what a prompt has to wait for."""
        if why_not := self._why_not_typed(screen, agent):
            return Judgement(AgentState.WORKING, why_not)
        return self._judge_screen(screen)

    def _why_not_typed(self, screen: Screen, agent: PaneAgent) -> str:
        """Why nothing at all may be typed into the pane; empty when it may."""
        pane = f"-t {screen.pane_id}"
        if screen.unsent.endswith(f"/{agent.process}"):
            return (
                f"a prompt lies in pane {screen.pane_id} that was pasted and not sent: send it or "
                f"clear it there, then `{screen.tmux} set-option -pu {pane} {UNSENT}`"
            )
        if not agent.ready:
            words = _NOT_FOREGROUND.format(screen)
            if self._recorded() is not None:
                return words
            return f"{words}; if that is the agent, `{screen.tmux} set-option -pu {pane} {AGENT}`"
        if screen.input_off:
            return (
                f"pane {screen.pane_id} takes no input: `{screen.tmux} select-pane -e {pane}` "
                "switches it on"
            )
        return ""

    def _judge_screen(self, screen: Screen) -> Judgement:
        """What the agent does, if its process is ready for input."""
        still_s, why_not = self._still_s(), ""
        if self._ready is None:
            if still_s < self._settle_s:
                settle_s = f"{self._settle_s:g} s"
                why_not = f"without ready_regex, it waits until nothing was written for {settle_s}"
        elif self._ready.search(screen.last_line) is None:
            why_not = "the last line of its screen does not match ready_regex"
        elif still_s * 1000 < self._spec.quiet_ms:
            why_not = f"something was written within the last {self._spec.quiet_ms} ms"
        return Judgement(AgentState.WORKING if why_not else AgentState.READY, why_not)

    def _still_s(self) -> float:
        """For how long the screen has not changed."""
        return time.monotonic() - self._calm_since_s

    def _paste(self, prompt: str, screen: Screen, agent: PaneAgent) -> str:
        """Paste the prompt, and have tmux send the Enter behind it. Returns the paste's name, which
        contains the agent's process.
        """
        name = self._buffers.load(prompt)
        faults.reach("tmux.loaded")
        paste = f"{name}/{agent.process}"
        # One step of the server: note the paste as unsent, paste it, start the timer for Enter.
        note = f"set-option -p -t {screen.pane_id} {UNSENT} {paste}"
        put = f"paste-buffer -p -r -d -b {name} -t {screen.pane_id}"
        enter = tmux_pane.enter_later(screen, paste, self._may_send(prompt, screen))
        step = f"{note} ; {put} ; {enter}"
        try:
            self._run_guarded(
                screen, step, f"#{{&&:{tmux_pane.runs_same(screen)},{self._may_paste(screen)}}}"
            )
        except Fenced:
            self._buffers.delete_left()
            raise
        faults.reach("tmux.pasted")
        # -d has deleted the buffer with the paste.
        self._buffers.forget(name)
        return paste

    def _may_paste(self, screen: Screen) -> str:  # noqa: ARG002 - for panes of known tools
        """A condition under which the tmux server pastes, besides that the pane is the same."""
        return "1"

    def _may_send(self, prompt: str, screen: Screen) -> str:  # noqa: ARG002 - as above
        """A condition under which it sends the Enter behind the paste of a prompt."""
        return "1"

    def _run_guarded(self, screen: Screen, command: str, pane: str) -> None:
        """Run a tmux command. The tmux server runs it only if the condition `pane` holds, this
        gateway's mark is on the pane, and it is not too late. Raises Fenced when it did not run it,
        and UpstreamUnavailable when nobody knows.
        """
        soon = f"#{{<=:#{{T:#{{l:%s}}}},{int(time.time()) + TMUX_PASTE_S}}}"
        condition = f"#{{&&:{soon},#{{&&:{tmux_pane.has_mark(str(self._mark))},{pane}}}}}"
        try:
            done = self._run_if(condition, screen, command)
        except UpstreamUnavailable as error:
            if tmux_pane.is_silent(error):
                raise UpstreamUnavailable(
                    f"nobody knows whether it was delivered: {error.message}", outcome="unknown"
                ) from None
            raise Fenced(
                f"the pane is gone: nothing was delivered ({error.message})", outcome="none"
            ) from None
        if not done:
            raise Fenced(
                "the pane is another one, takes no input, another gateway has it, or it was too "
                "late: nothing was delivered",
                outcome="none",
            )

    def _await_enter(self, prompt: str, screen: Screen, paste: str) -> None:
        """Wait until tmux has sent the Enter behind a paste. A timer is lost with the client that
        started it; then the Enter is sent now. Raises UpstreamUnavailable when it was not sent.
        """
        with contextlib.suppress(UpstreamUnavailable):
            self._server.run("wait-for", paste, limit_s=_ENTER_WITHIN_S)
        if not self._send_enter(prompt, screen, paste):
            raise UpstreamUnavailable(
                "pasted, but another program was in the pane before Enter", outcome="unknown"
            )

    def _send_enter(self, prompt: str, screen: Screen, paste: str) -> bool:
        """Send the Enter behind a paste if it was not sent yet; False when it may not be sent. The
        pane's option tells whether it was sent, so there is never a second one.
        """
        still = f"if-shell -F -t {screen.pane_id} '{tmux_pane.is_unsent(paste)}' '{_REFUSAL}'"
        enter = tmux_pane.enter_once(screen, paste, self._may_send(prompt, screen))
        try:
            return self._run_if("1", screen, f"{enter} ; {still}")
        except UpstreamUnavailable as error:
            raise UpstreamUnavailable(
                f"pasted, but it may not have been sent: {error.message}", outcome="unknown"
            ) from None

    def _run_if(self, condition: str, screen: Screen, command: str) -> bool:
        """Run a tmux command if the tmux server finds the condition true. True if it ran."""
        return "refused" not in self._server.run(
            "if-shell", "-F", "-t", screen.pane_id, condition, command, _REFUSAL
        )


def _too_old(version: str) -> bool:
    # Versions such as next-3.6 are later.
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) < _TMUX_SINCE
