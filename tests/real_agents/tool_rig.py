"""A real tool as an agent in a real tmux, with its gateway: for tests that look at the bytes that
were typed, at what the model was asked, and at the files that the tool has written.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import holdfast
from holdfast.adapters.gateway_client import GatewayClient
from tests.harness import typed_program
from tests.harness.model_endpoint import ModelEndpoint
from tests.harness.real_tools import need_tool, prepare_home, tool_environment
from tests.harness.timeouts import until
from tests.harness.tmux_server import TmuxServer, tmux_server
from tests.surfaces.command import ENTRY, CommandLine
from tests.surfaces.locking import line, put_down

AGENT = "gpu"
SESSION = "HOLDFAST-gpu"
PASTE, PASTED = b"\x1b[200~", b"\x1b[201~"
_WAIT_S = 60.0


class ToolRig(CommandLine):
    """One tool, its gateway, and the model behind it. `typed` are all bytes that the pane's program
    got, whoever typed them.
    """

    def __init__(self, folder: Path, tool: str, tmux: TmuxServer, model: ModelEndpoint) -> None:
        self.project = folder / "project"
        home = folder / "home"
        prepare_home(home, self.project, model)
        environment = {**tool_environment(home, model), **tmux.environment}
        environment["HOLDFAST_STORE"] = f"sqlite:{folder / 'store.sqlite'}"
        program = need_tool(tool)
        self._log = folder / "typed"
        programs = folder / "bin"
        programs.mkdir()
        wrapper = programs / tool
        command = f"{sys.executable} {typed_program.__file__} {self._log} {program}"
        # Not at a terminal, it is asked about itself.
        wrapper.write_text(f'#!/bin/sh\n[ -t 0 ] || exec {program} "$@"\nexec {command} "$@"\n')
        wrapper.chmod(0o755)
        environment["PATH"] = f"{programs}:{environment['PATH']}"
        super().__init__(self.project, **environment)
        self.tool, self.tmux, self.model = tool, tmux, model
        self.home = home
        self.hf = holdfast.connect(environment["HOLDFAST_STORE"])
        self._gateway: subprocess.Popen[str] | None = None

    def begin(self, *options: str, arguments: tuple[str, ...] = ()) -> None:
        """Start the tool as an agent."""
        ran = self("agents", "start", AGENT, *options, "--", self.tool, *arguments)
        assert ran.status == 0, ran.err

    def serve(self) -> None:
        """Start the agent's gateway, after the one before, and wait until it answers."""
        self.close_gateway()
        self._gateway = subprocess.Popen(
            [*ENTRY, "gateway", "serve", AGENT],
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert "gateway of" in line(self._gateway)

    def kill_gateway(self) -> None:
        """End the gateway with SIGKILL."""
        assert self._gateway is not None
        self._gateway.send_signal(signal.SIGKILL)
        self._gateway.wait()
        put_down(self._gateway)
        self._gateway = None

    @property
    def gateway(self) -> GatewayClient:
        return self.hf.gateway(AGENT)

    def state(self) -> str:
        return str(self.gateway.status()["agent_state"])

    def until_state(self, state: str, seconds: float = _WAIT_S) -> dict[str, Any]:
        """Wait until the agent is in this state; return the gateway's status."""
        seen: list[dict[str, Any]] = []

        def there() -> bool:
            seen.append(self.gateway.status())
            return bool(seen[-1]["agent_state"] == state)

        until(there, seconds, lambda: f"{seen[-1]}\n{self.screen()}", every_s=0.1)
        return seen[-1]

    def until_asked(self) -> dict[str, Any]:
        """Wait until the agent asks one question that an operator can answer, and return it."""
        until(lambda: self.gateway.status()["questions"], _WAIT_S, self.screen, every_s=0.1)
        [question] = self.gateway.status()["questions"]
        return dict(question)

    def prompt(self, text: str, **more: Any) -> str:
        """Hand in a prompt; return the request's id."""
        return str(self.gateway.prompt(text, **more)["request_id"])

    def ended(self, request_id: str, seconds: float = _WAIT_S) -> dict[str, Any]:
        """Wait until a request has ended, and return it."""
        found: list[dict[str, Any]] = []

        def over() -> bool:
            found.append(self.gateway.request(request_id, wait_s=5))
            return found[-1]["state"] in ("completed", "failed")

        until(over, seconds, lambda: f"{found[-1]}\n{self.gateway.status()}\n{self.screen()}")
        return found[-1]

    def answer_to(self, text: str) -> str:
        """Hand in a prompt and return its answer."""
        ended = self.ended(self.prompt(text))
        assert ended["state"] == "completed", ended
        return str(ended["result"]["text"])

    def screen(self) -> str:
        return self.tmux.screen(SESSION)

    def until_shown(self, text: str, seconds: float = _WAIT_S) -> None:
        until(lambda: text in self.screen(), seconds, self.screen, every_s=0.05)

    def until_not_shown(self, text: str, seconds: float = _WAIT_S) -> None:
        until(lambda: text not in self.screen(), seconds, self.screen, every_s=0.05)

    def person_types(self, *keys: str) -> None:
        """Keys of a person at the terminal, by their names in tmux."""
        self.tmux("send-keys", "-t", f"={SESSION}:", *keys)

    def person_answers(self, key: str, dialog: str) -> None:
        """Press a key until a dialog is gone: tools ignore keys in its first moment, so that nobody
        answers it by accident.
        """

        def is_gone() -> bool:
            if dialog not in self.screen():
                return True
            self.person_types(key)
            return False

        self.until_shown(dialog)
        until(is_gone, _WAIT_S, self.screen, every_s=1.0)

    def person_writes(self, text: str) -> None:
        self.tmux("send-keys", "-l", "-t", f"={SESSION}:", text)

    def typed(self) -> bytes:
        """Every byte that was typed, once every timer that the tmux server has has fired."""
        self.tmux("run-shell", "-d", "2")
        return self._log.read_bytes() if self._log.exists() else b""

    def typed_now(self) -> bytes:
        return self._log.read_bytes() if self._log.exists() else b""

    def until_gone(self) -> None:
        """Wait until the agent's session is gone, and its record with it."""
        until(lambda: SESSION not in self.tmux.sessions(), _WAIT_S, self.screen)
        until(lambda: self.hf.agents.resolve(AGENT).record is None, _WAIT_S)

    def pid(self) -> int:
        """The process of the tool itself, behind the program that logs."""
        agent = self.hf.agents.resolve(AGENT).unwrap()
        assert agent.holder is not None
        children = Path(f"/proc/{agent.holder.pid}/task/{agent.holder.pid}/children")
        return int(children.read_text().split()[0])

    def close_gateway(self) -> None:
        if self._gateway is not None:
            self._gateway.send_signal(signal.SIGTERM)
            self._gateway.wait(_WAIT_S)
            put_down(self._gateway)
            self._gateway = None

    def close(self) -> None:
        self.close_gateway()
        self.hf.close()


@contextmanager
def tool_rig(folder: Path, tool: str) -> Iterator[ToolRig]:
    """A tool that is ready to start, and ended with everything at the end of the block."""
    with tmux_server() as tmux, ModelEndpoint() as model:
        rig = ToolRig(folder, tool, tmux, model)
        try:
            yield rig
        finally:
            # The tool first: its hooks belong to no gateway any more. Some outlive their terminal.
            rig("agents", "stop", AGENT, "--grace", "2")
            tmux("kill-server", check=False)
            rig.close()


def pasted(*prompts: str) -> bytes:
    """The bytes of these prompts: each one paste in brackets, and one Enter. A terminal sends a
    carriage return for the end of a line.
    """
    return b"".join(PASTE + one.encode() + PASTED + b"\r" for one in prompts)


def without_answers_to_queries(typed: bytes) -> bytes:
    """The typed bytes without those by which a terminal answers the program's own questions."""
    import re

    return re.sub(rb"\x1b\[[?>]?[0-9;]*[cRnu$y]+|\x1b\[[IO]|\x1bP[^\x1b]*\x1b\\", b"", typed)


def kept_in(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None


def ended_with(pid: int) -> bool:
    return not os.path.exists(f"/proc/{pid}")
