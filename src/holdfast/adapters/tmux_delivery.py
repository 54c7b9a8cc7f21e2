"""An agent in a tmux session: its prompts are pasted, its answers read from the screen.

The pane is the session's first one, and everything is sent to it under a condition that the tmux
server checks in the same step: that it is still the process that was looked at, and that no other
gateway has it. So a session of the same name that came in its place gets nothing, nor does one from
a gateway in whose place another came.

Text goes by a buffer and bracketed paste, never as keys, so that nothing in it is a key or a
command. Enter and the interrupt key go by a buffer too: what tmux sends as a key goes to its copy
mode while somebody scrolls there, and to every pane of a window whose panes are synchronized. The
command that pastes also starts a timer in the tmux server, which sends the one Enter behind it. So
a gateway that is killed in between leaves no paste that would be sent together with the next
prompt.

A tmux server that does not answer in time is not one without the session. What comes before the
paste has then done nothing, and the prompt waits; of the paste itself nobody knows, and it is not
done again. The server itself is told until when it may paste: one that was stopped leaves undone
what was given up meanwhile.
"""

import contextlib
import os
import re
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from holdfast.adapters.tmux_pane import (
    AGENT,
    MARK,
    UNSENT,
    PaneAgent,
    Screen,
    TmuxServer,
    foreground_agent,
    mark_in,
    note_of,
    own_mark,
    pastes_bracketed,
    recorded_agent,
    served,
    silent,
)
from holdfast.domains.gateway.adapter import Answer, Delivery, Sighting, Surface, TmuxSpec
from holdfast.kernel import faults
from holdfast.kernel.errors import Fenced, InvalidValue, UpstreamUnavailable
from holdfast.kernel.holder import Holder, Liveness
from holdfast.kernel.limits import TMUX_ANSWER_S, TMUX_PASTE_S
from holdfast.processes.procfs import Procfs
from holdfast.system.access import in_private_folder, open_file

_NAME = "holdfast-"
_KEY = "holdfast_key"
"""The buffer in which a key is given to a pane. It is there for one step of the tmux server only.
"""
_ENTER_AFTER_S = 0.3
"""How long after a paste tmux sends its Enter: some programs take one that comes at once for a part
of the paste.
"""
_ENTER_WITHIN_S = 1.0
"""How long that timer is waited for, before it is taken for lost."""
_BYTES = {"C-c": r"\003", "Escape": r"\033", "Enter": r"\015"}
"""What a terminal sends for a key, as tmux writes it between quotes."""
_TMUX_SINCE = (3, 2)
"""The first tmux whose `run-shell` can run tmux commands (-C) after a delay (-d)."""
_REFUSAL = "display-message -p refused"
_STAY_S = 5.0
"""How long a program must have the foreground to count as the agent, though it was never ready."""
_SAMPLE_S = 0.1
_NOT_FOREGROUND = "the agent's process is not in the foreground of pane {0.pane_id}: {0.program} is"
_PLAIN = re.compile(r"[A-Za-z0-9._+-]+")
"""A program's name that means nothing to tmux's formats."""
_UNBRACKETED_BYTES_MAX = 4000
"""What a terminal in line mode takes as one line; it drops what is beyond."""


class _Pasted(NamedTuple):
    """A delivery: the screen before it, and the instance it went to."""

    before: Screen
    instance_id: str


class TmuxAgent:
    """A tmux session as an agent, for the gateway of that name. `folder` is where a prompt lies for
    the moment in which tmux reads it. `process` tells which one is on the agent's record, if any:
    nothing is typed to another.
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
        # With one of the last three first, tmux would take it for an id.
        if not spec.session or set(spec.session) & set(":.\n") or spec.session[0] in "$@%":
            raise InvalidValue(
                f"{spec.session!a} cannot be a tmux session's name here: it has no : and no . and "
                "begins with none of $ @ %",
                field="session",
            )
        try:
            self._ready = None if spec.ready_regex is None else re.compile(spec.ready_regex)
        except re.error as error:
            raise InvalidValue(
                f"ready_regex is no regular expression: {error}", field="ready_regex"
            ) from None
        self._spec = spec
        self._recorded = process
        self._folder = folder
        self._processes = processes
        self._server = TmuxServer(spec.socket_name, spec.socket_path, limit_s=limit_s)
        self._mark = own_mark(agent, folder, processes)
        self._marked: Screen | None = None
        self._stray: list[str] = []
        self._begun = False
        self._last: Screen | None = None
        self._calm_since_s = 0.0
        self._launched: str | None = None
        self._launched_s = 0.0

    def inspect(self) -> Sighting:
        if not self._begun:
            # With the first look and not before: by then this process is the one that serves.
            self._begun = True
            self._stray += sorted(path.name for path in self._folder.glob(f"{_NAME}*"))
            self._clear_away()
        screen = self._look()
        if screen is None:
            return Sighting(
                None, detail=f"there is no tmux session {self._spec.session} with a live pane"
            )
        if _too_old(screen.version):
            needed = ".".join(map(str, _TMUX_SINCE))
            return Sighting(
                None,
                detail=(
                    f"tmux {screen.version} is too old to deliver a prompt safely: use {needed} "
                    "or later"
                ),
            )
        agent = self._agent(screen)
        if agent.process is None:
            return Sighting(None, detail=agent.detail, reason=agent.reason)
        self._claim(screen)
        self._note(screen)
        why_not = self._why_not_ready(screen, agent)
        if not why_not or self._has_stayed(agent):
            self._remember(screen, agent)
        return Sighting(
            self._instance(screen, agent), Surface.NOT_READY if why_not else Surface.READY, why_not
        )

    def check(self, prompt: str) -> None:
        """What a terminal would obey is refused for every adapter; whether the pane takes pastes is
        only known at delivery.
        """

    def deliver(self, prompt: str, instance_id: str) -> Delivery:
        screen, agent = self._same(instance_id)
        self._note(screen)
        if why_not := self._why_not_ready(screen, agent):
            raise Fenced(f"nothing was delivered: {why_not}", outcome="none")
        plain = "\n" not in prompt and len(prompt.encode()) <= _UNBRACKETED_BYTES_MAX
        if not plain and not pastes_bracketed(self._server, self._spec.session, screen):
            raise InvalidValue(
                f"the program in tmux session {self._spec.session} has not switched bracketed "
                "paste on, so a prompt of several "
                f"lines or more than {_UNBRACKETED_BYTES_MAX} bytes would come in pieces: nothing "
                "was delivered",
                outcome="none",
            )
        paste = self._paste(prompt, screen, agent)
        self._await_enter(screen, paste)
        self._calm_since_s = time.monotonic()
        return Delivery(_Pasted(screen, instance_id))

    def answer(self, delivery: Delivery, stop: threading.Event) -> Answer:
        if self._ready is None:
            # That nothing is written is no sign of an end: agents think, and wait for tools and for
            # people.
            return Answer(known=False)
        pasted: _Pasted = delivery.handle
        begun_s = time.monotonic()
        while not stop.wait(_SAMPLE_S):
            # One that does not answer now may do so later, and the session be there still.
            with contextlib.suppress(UpstreamUnavailable):
                screen = self._look()
                agent = None if screen is None else self._agent(screen)
                if (
                    screen is None
                    or agent is None
                    or self._instance(screen, agent) != pasted.instance_id
                ):
                    return Answer(
                        code="upstream_unavailable",
                        detail="it was delivered, and then the agent went away",
                    )
                self._note(screen)
                if screen.content != pasted.before.content and not self._why_not_ready(
                    screen, agent
                ):
                    return Answer(self._server.text_since(pasted.before, screen), "screen")
            if time.monotonic() - begun_s > self._spec.answer_timeout_s:
                why = (
                    "it was delivered, and the agent did not come to rest within "
                    f"{self._spec.answer_timeout_s:g} s"
                )
                return Answer(code="timeout", detail=why)
        return Answer(known=False, code="stopped", detail="the gateway was stopped")

    def interrupt(self, instance_id: str) -> bool:
        screen, agent = self._same(instance_id)
        if not agent.ready and not agent.busy:
            raise Fenced(f"{_NOT_FOREGROUND.format(screen)}: nothing was sent", outcome="none")
        self._under_condition(screen, _press(screen, self._spec.interrupt_key))
        return True

    def close(self) -> None:
        """Leave the pane to the next gateway. The session is its owner's."""
        if self._marked is not None:
            with contextlib.suppress(UpstreamUnavailable):
                self._run_if(
                    _marked(str(self._mark)),
                    self._marked,
                    f"set-option -pu -t {self._marked.pane_id} {MARK}",
                )

    def _claim(self, screen: Screen) -> None:
        """Become the gateway that types into a pane. Raises Held while another lives.

        Of the same agent's gateways the last one has it, which became the one that serves before it
        first looked.
        """
        found = mark_in(screen.mark)
        if found == self._mark:
            return
        if found is not None and (self._marked is not None or found[:2] != self._mark[:2]):
            liveness = found.liveness(self._processes)
            if liveness is not Liveness.DEAD:
                unmark = f"{screen.tmux} set-option -pu -t {screen.pane_id} {MARK}"
                raise served(self._spec.session, found, liveness, unmark)
        unchanged = _marked(screen.mark) if found is not None or not screen.mark else "1"
        if not self._run_if(
            unchanged, screen, f"set-option -p -t {screen.pane_id} {MARK} {self._mark}"
        ):
            raise UpstreamUnavailable(
                "another gateway is just taking the tmux session: look again", outcome="none"
            )
        self._marked = screen

    def _look(self) -> Screen | None:
        return self._server.screen(self._spec.session)

    def _agent(self, screen: Screen) -> PaneAgent:
        recorded = self._recorded()
        if recorded is not None:
            return recorded_agent(recorded, screen, self._processes)
        return foreground_agent(screen, self._processes)

    def _has_stayed(self, agent: PaneAgent) -> bool:
        """Has a program that a shell started kept the foreground? What a shell runs for its own
        prompt does not.
        """
        if agent.process != self._launched:
            self._launched, self._launched_s = agent.process, time.monotonic()
        return agent.launched and time.monotonic() - self._launched_s >= _STAY_S

    def _remember(self, screen: Screen, agent: PaneAgent) -> None:
        """Note in tmux which process is the agent, for this gateway and the next."""
        if screen.agent != (note := note_of(agent, screen, self._processes)):
            self._run_if(
                _marked(str(self._mark)),
                screen,
                f"set-option -p -t {screen.pane_id} {AGENT} {note}",
            )

    def _same(self, instance_id: str) -> tuple[Screen, PaneAgent]:
        """The pane, if it is that instance's. Raises Fenced when it is not, or when tmux does not
        say.
        """
        try:
            screen = self._look()
        except UpstreamUnavailable as error:
            raise Fenced(
                f"it is not known whether the agent is there: nothing was sent ({error.message})",
                outcome="none",
            ) from None
        agent = None if screen is None else self._agent(screen)
        if screen is None or agent is None or self._instance(screen, agent) != instance_id:
            raise Fenced(
                f"tmux session {self._spec.session} is another one than before: nothing was sent",
                outcome="none",
            )
        return screen, agent

    def _instance(self, screen: Screen, agent: PaneAgent) -> str:
        server, pane = (
            self._processes.sight(screen.server_pid),
            self._processes.sight(screen.pane_pid),
        )
        ticks = [None if seen is None else seen.start_ticks for seen in (server, pane)]
        return (
            f"tmux:{screen.server_pid}.{ticks[0]}:{screen.session_id}.{screen.session_created}:"
            f"{screen.pane_id}.{screen.pane_pid}.{ticks[1]}:{agent.process}"
        )

    def _note(self, screen: Screen) -> None:
        if self._last is None or self._last.content != screen.content:
            self._last, self._calm_since_s = screen, time.monotonic()

    def _why_not_ready(self, screen: Screen, agent: PaneAgent) -> str:
        """What a prompt has to wait for; empty when it need not."""
        if screen.unsent.endswith(f"/{agent.process}"):
            return (
                f"a prompt lies in pane {screen.pane_id} that was pasted and not sent: send it or "
                "clear it there, then "
                f"`{screen.tmux} set-option -pu -t {screen.pane_id} {UNSENT}`"
            )
        if not agent.ready:
            words = _NOT_FOREGROUND.format(screen)
            if self._recorded() is not None:
                return words
            return (
                f"{words}; if that is the agent, `{screen.tmux} set-option -pu -t "
                f"{screen.pane_id} {AGENT}`"
            )
        if screen.input_off:
            return (
                f"pane {screen.pane_id} takes no input: `{screen.tmux} select-pane -e -t "
                f"{screen.pane_id}` switches it on"
            )
        calm_s = time.monotonic() - self._calm_since_s
        if self._ready is None:
            settled = calm_s >= self._spec.settle_s
            return (
                ""
                if settled
                else "without ready_regex, it waits until nothing was written for "
                f"{self._spec.settle_s:g} s"
            )
        if self._ready.search(screen.last_line) is None:
            return "the last line of its screen does not match ready_regex"
        return (
            ""
            if calm_s * 1000 >= self._spec.quiet_ms
            else f"something was written within the last {self._spec.quiet_ms} ms"
        )

    def _paste(self, prompt: str, screen: Screen, agent: PaneAgent) -> str:
        """Paste it, and have tmux send the Enter behind it. Returns the name of the paste, which
        has the process in it.
        """
        self._clear_away()
        name = f"{_NAME}{secrets.token_hex(8)}"
        self._stray.append(name)
        self._load(prompt, name)
        faults.reach("tmux.loaded")
        paste = f"{name}/{agent.process}"
        note = f"set-option -p -t {screen.pane_id} {UNSENT} {paste}"
        put = f"paste-buffer -p -r -d -b {name} -t {screen.pane_id}"
        try:
            self._under_condition(
                screen, f"{note} ; {put} ; {_enter_later(screen, paste)}", same_program=True
            )
        except Fenced:
            self._clear_away()
            raise
        faults.reach("tmux.pasted")
        # With the paste, the buffer is gone.
        self._stray.remove(name)
        (self._folder / name).unlink(missing_ok=True)
        return paste

    def _load(self, prompt: str, name: str) -> None:
        """Have tmux read it into a buffer. An empty file of the same name stays for as long as the
        buffer may be there.
        """
        path = self._folder / name
        try:
            # Written by its own descriptor: 0600 whatever the umask, and never through a link.
            with open(in_private_folder(path, _new_file), "wb") as file:
                file.write(prompt.encode())
            self._server.run("load-buffer", "-b", name, str(path))
        except OSError as error:
            self._stray.remove(name)
            path.unlink(missing_ok=True)
            raise UpstreamUnavailable(
                f"the prompt cannot be written for tmux to read: {error}", outcome="none"
            ) from None
        except UpstreamUnavailable as error:
            if silent(error):
                raise Fenced(f"nothing was delivered: {error.message}", outcome="none") from None
            raise
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.close(open_file(path, os.O_WRONLY | os.O_TRUNC, make=False))

    def _clear_away(self) -> None:
        """Delete the buffers of prompts that were not pasted, also those of a gateway that was
        killed: nobody else should find them there.
        """
        while self._stray:
            try:
                self._server.run("delete-buffer", "-b", self._stray[-1])
            except UpstreamUnavailable as error:
                if silent(error):
                    return
            (self._folder / self._stray.pop()).unlink(missing_ok=True)

    def _under_condition(self, screen: Screen, command: str, *, same_program: bool = False) -> None:
        """Run a tmux command, which the tmux server does only if the pane is still the one that was
        looked at, this gateway's, and it is not too late; `same_program`, only if the foreground
        has a program of the same name. Raises Fenced when it did not, and UpstreamUnavailable when
        nobody knows.
        """
        soon = f"#{{<=:#{{T:#{{l:%s}}}},{int(time.time()) + TMUX_PASTE_S}}}"
        try:
            pane = _runs(screen) if same_program else _is(screen)
            said = self._run_if(
                f"#{{&&:{soon},#{{&&:{_marked(str(self._mark))},{pane}}}}}", screen, command
            )
        except UpstreamUnavailable as error:
            if silent(error):
                raise UpstreamUnavailable(
                    f"nobody knows whether it was delivered: {error.message}", outcome="unknown"
                ) from None
            raise Fenced(
                f"the pane is gone: nothing was delivered ({error.message})", outcome="none"
            ) from None
        if not said:
            raise Fenced(
                "the pane is another one, takes no input, another gateway has it, or it was too "
                "late: nothing was delivered",
                outcome="none",
            )

    def _await_enter(self, screen: Screen, paste: str) -> None:
        """Wait until tmux has sent the Enter behind a paste. If its timer was lost, with the client
        that it was tied to, the Enter is sent now: the pane's option says that none was.
        """
        with contextlib.suppress(UpstreamUnavailable):
            self._server.run("wait-for", paste, limit_s=_ENTER_WITHIN_S)
        still = f"if-shell -F -t {screen.pane_id} '{_unsent(paste)}' '{_REFUSAL}'"
        try:
            sent = self._run_if("1", screen, f"{_enter_once(screen, paste)} ; {still}")
        except UpstreamUnavailable as error:
            raise UpstreamUnavailable(
                f"pasted, and perhaps not sent: {error.message}", outcome="unknown"
            ) from None
        if not sent:
            raise UpstreamUnavailable(
                "pasted, but another program was in the pane before Enter", outcome="unknown"
            )

    def _run_if(self, condition: str, screen: Screen, command: str) -> bool:
        """Was the command run? It was, unless the tmux server says otherwise."""
        return "refused" not in self._server.run(
            "if-shell", "-F", "-t", screen.pane_id, condition, command, _REFUSAL
        )


def _new_file(folder: int, name: str) -> int:
    return os.open(
        name,
        os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
        0o600,
        dir_fd=folder,
    )


def _is(screen: Screen) -> str:
    """The condition that a pane is the one on that screen, and takes input."""
    process = (
        f"#{{&&:#{{==:#{{pid}},{screen.server_pid}}},#{{==:#{{pane_pid}},{screen.pane_pid}}}}}"
    )
    return f"#{{&&:{process},#{{!=:#{{pane_input_off}},1}}}}"


def _marked(mark: str) -> str:
    """The condition that a pane is marked so."""
    return f"#{{==:#{{{MARK}}},{mark}}}"


def _runs(screen: Screen) -> str:
    """The condition that a pane is the one on that screen, with a program of the same name in the
    foreground.
    """
    if not _PLAIN.fullmatch(screen.program):
        # It would be a part of the condition's own syntax. The process was looked at a moment ago.
        return _is(screen)
    return f"#{{&&:{_is(screen)},#{{==:#{{pane_current_command}},{screen.program}}}}}"


def _unsent(paste: str) -> str:
    """The condition that no Enter was sent behind a paste."""
    return f"#{{==:#{{{UNSENT}}},{paste}}}"


def _enter_later(screen: Screen, paste: str) -> str:
    """The tmux command that starts the timer for the Enter behind a paste, and says when that was
    sent.
    """
    # run-shell expands formats when it starts the timer. What is to be expanded when the timer
    # fires is doubled here.
    later = f"{_enter_once(screen, paste)} ; wait-for -S {paste}".replace("#", "##")
    return f"run-shell -b -d {_ENTER_AFTER_S} -C {_quoted(later)}"


def _enter_once(screen: Screen, paste: str) -> str:
    """The tmux command that sends Enter for a paste: once, and only to the program that got the
    paste. The shell that an agent leaves behind would run the paste as a command.
    """
    pane = f"-t {screen.pane_id}"
    owed = f"#{{&&:{_runs(screen)},{_unsent(paste)}}}"
    return (
        f"if-shell -F {pane} '{owed}' 'set-option -pu {pane} {UNSENT} ; {_press(screen, 'Enter')}'"
    )


def _press(screen: Screen, key: str) -> str:
    """The tmux command that gives the pane's program, and nothing else, what a terminal sends for a
    key.
    """
    return (
        f'set-buffer -b {_KEY} "{_BYTES[key]}" ; paste-buffer -r -d -b {_KEY} -t {screen.pane_id}'
    )


def _quoted(command: str) -> str:
    """A tmux command as one word of another."""
    return '"' + command.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$") + '"'


def _too_old(version: str) -> bool:
    """Is it a tmux before 3.2? Those between versions, such as next-3.6, are later."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) < _TMUX_SINCE
