"""A real gateway as a process of its own, to be killed, stopped and started again."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from holdfast.adapters.gateway_client import GatewayClient
from tests.harness.processes import send
from tests.harness.timeouts import PATIENCE_S

AGENT = "gpu"
_RUN = """
import sys
from holdfast.surfaces.cli import entry
from holdfast.testing import faults
action, _, point = sys.argv.pop(1).partition(" ")
with faults.at_point(point, getattr(faults, action)):
    entry.main()
"""
DILIGENT = """
import fcntl, os, sys, time
prompt = sys.stdin.read()
alone = open(sys.argv[1] + ".alone", "a")
try:
    fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    prompt = "beside another: " + prompt
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
os.write(fd, (prompt + "\\n").encode())
if prompt.startswith("long"):
    time.sleep(1000)
time.sleep(float(prompt.partition(" ")[2] or 0))
print("did", prompt)
"""
"""A headless agent: logs its prompt, and whether another one is running; works as long as the
prompt says, and answers.
"""


class GatewayProcess:
    """The gateway of one agent in one folder, started as often as needed."""

    def __init__(self, folder: Path, *adapter: str, store: str | None = None) -> None:
        self.folder = folder
        self.log = folder / "asked"
        self._adapter = adapter or (
            "--adapter",
            "command",
            "--",
            sys.executable,
            "-c",
            DILIGENT,
            str(self.log),
        )
        self.environment = {
            **os.environ,
            "HOLDFAST_STORE": store or f"sqlite:{folder}/store.sqlite",
            "HOLDFAST_GATEWAY_ROOT": str(folder / "gateways"),
            "LC_ALL": "C.UTF-8",
        }
        self.root = folder / "gateways" / "default" / AGENT
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "GatewayProcess":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process is not None:
            self.kill()
        for pid in self.programs():
            send(pid, signal.SIGKILL, self._is_program)

    @property
    def client(self) -> GatewayClient:
        return GatewayClient(AGENT, root=self.root, timeout_s=PATIENCE_S)

    def start(
        self, *options: str, dies_at: str = "never", stops_at: str | None = None
    ) -> "GatewayProcess":
        """Start it, to be killed or stopped whenever it reaches a point, and return when it
        serves.
        """
        fault = f"kill {dies_at}" if stops_at is None else f"stop {stops_at}"
        words = [
            sys.executable,
            "-c",
            _RUN,
            fault,
            "gateway",
            "serve",
            AGENT,
            *options,
            *self._adapter,
        ]
        with open(self.folder / "stderr", "a") as errors:
            self.process = subprocess.Popen(
                words,
                env=self.environment,
                cwd=self.folder,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith(f"gateway of {AGENT} at ") or dies_at != "never", (
            self.folder / "stderr"
        ).read_text()[-2000:]
        return self

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.kill()
        self.wait()

    def stop(self) -> int:
        """SIGTERM, and its exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Until it has ended; its exit status."""
        assert self.process is not None
        assert self.process.stdout is not None
        status = self.process.wait(PATIENCE_S)
        self.process.stdout.close()
        self.process = None
        return status

    def programs(self) -> list[int]:
        """The live processes of the agent, including those that have not started their work yet."""
        return [
            pid
            for pid in map(int, filter(str.isdecimal, os.listdir("/proc")))
            if self._is_program(pid)
        ]

    def _is_program(self, pid: int) -> bool:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return os.fsencode(self.log) in words and b"serve" not in words

    def asked(self) -> list[str]:
        """The agent's prompts, in order."""
        return self.log.read_text().splitlines() if self.log.exists() else []
