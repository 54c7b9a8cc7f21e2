"""Count the modules and Python calls of Holdfast behind four everyday paths.

    .venv/bin/python -m tools.call_paths [--modules]

Counted are calls of functions of `holdfast` in one process; imports are not counted. Call depth is
a cost in reading and in speed, so these figures are watched like the number of lines.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import holdfast

_ROOT = f"{Path(holdfast.__file__).parent}/"
_LIMIT_S = 60
_SETTLE_S = 0.5


class CallCounter:
    """Counts calls in every thread that starts after `install`."""

    def __init__(self) -> None:
        self.modules: Counter[str] = Counter()
        self._importing = threading.local()

    def install(self) -> None:
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return"):
            return
        depth = getattr(self._importing, "depth", 0)
        if code.co_name == "<module>":
            self._importing.depth = depth + (1 if event == "call" else -1)
        elif event == "call" and not depth and code.co_filename.startswith(_ROOT):
            self.modules[code.co_filename.removeprefix(_ROOT)] += 1


def _count_command(report: str, words: list[str]) -> None:
    """Run the command line in this process and write the counts, whichever way it ends. SIGUSR1
    starts the count again. SIGUSR2 writes the final count, so that the end of a server is not
    counted.
    """
    counter = CallCounter()
    process = os.getpid()
    written = False

    def write(*_: Any) -> None:
        if os.getpid() == process and not written:
            unfinished = Path(f"{report}.new")
            unfinished.write_text(json.dumps(counter.modules))
            unfinished.replace(report)

    def end(status: int) -> None:
        write()
        leave(status)

    def finish(*_: Any) -> None:
        nonlocal written
        write()
        written = True

    leave, os._exit = os._exit, end  # type: ignore[assignment]
    signal.signal(signal.SIGUSR1, lambda *_: counter.modules.clear())
    signal.signal(signal.SIGUSR2, finish)
    sys.argv = ["holdfast", *words]
    from holdfast.surfaces.cli.entry import main

    counter.install()
    try:
        # Not as a module: calls of a module's body count as import.
        main()
    finally:
        sys.setprofile(None)
        write()


class Folder:
    """A scratch folder with a store, and commands that work on it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.report = path / "report.json"
        self.environment = {
            **os.environ,
            "HOLDFAST_STORE": f"sqlite:{path}/store.sqlite",
            "HOME": str(path),
            "XDG_RUNTIME_DIR": str(path),
        }

    def run(self, *words: str) -> str:
        """The output of a command."""
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", *words],
            env=self.environment,
            cwd=self.path,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=True,
        )
        return done.stdout

    def start_counted(self, *words: str) -> subprocess.Popen[str]:
        """A command whose calls are counted."""
        return subprocess.Popen(
            [sys.executable, "-m", "tools.call_paths", "--child", str(self.report), *words],
            env={**self.environment, "PYTHONPATH": str(Path(__file__).parents[1])},
            cwd=self.path,
            stdout=subprocess.PIPE,
            text=True,
        )

    def counted(self) -> Counter[str]:
        return Counter(json.loads(self.report.read_text()))

    def count_in(self, server: subprocess.Popen[str], *words: str) -> Counter[str]:
        """Count what a server does for one command; the first command warms it up."""
        for _ in range(2):
            # A mirror writes files a moment after a change. The files of the first command are
            # written by now, and those of the second are counted.
            time.sleep(_SETTLE_S)
            server.send_signal(signal.SIGUSR1)
            self.run(*words)
        return self.end(server)

    def end(self, server: subprocess.Popen[str]) -> Counter[str]:
        """End a counted server; return the counts so far."""
        time.sleep(_SETTLE_S)
        server.send_signal(signal.SIGUSR2)
        server.terminate()
        server.wait(_LIMIT_S)
        return self.counted()


def locks_run(folder: Folder) -> Counter[str]:
    """`holdfast locks run board-1 -- true`, on a store that exists."""
    folder.run("locks", "run", "board-1", "--", "true")
    folder.start_counted("locks", "run", "board-1", "--", "true").wait(_LIMIT_S)
    return folder.counted()


def http_claim(folder: Folder) -> Counter[str]:
    """`POST /v1/queue/pick` of a job that is pending, in the server."""
    import httpx

    for number in range(2):
        folder.run("jobs", "register", "--id", f"job-{number}", "--prompt", "x", "--queue", "q")
    server = folder.start_counted("serve", "--port", "0", "--json")
    assert server.stdout is not None
    shown = json.loads(server.stdout.readline())
    token = Path(shown["token_file"]).read_text().strip()
    with httpx.Client(
        base_url=shown["url"], headers={"Authorization": f"Bearer {token}"}, timeout=_LIMIT_S
    ) as client:
        for _ in range(2):
            time.sleep(_SETTLE_S)
            server.send_signal(signal.SIGUSR1)
            picked = client.post("/v1/queue/pick", json={"agent_session": "q"})
            assert picked.status_code == 200, picked.text
        return folder.end(server)


def gateway_prompt(folder: Folder) -> Counter[str]:
    """From `holdfast gateway prompt` to the answer of a program, in the gateway."""
    server = folder.start_counted("gateway", "serve", "echo", "--adapter", "command", "--", "cat")
    assert server.stdout is not None
    server.stdout.readline()
    return folder.count_in(server, "gateway", "prompt", "echo", "hello", "--wait")


def router_lock_on_files(folder: Folder) -> Counter[str]:
    """`acquire_router_lock` on a store of plain files."""
    with holdfast.connect(f"files:{folder.path}/files") as hf:
        hf.network.acquire_router_lock("router-0", "job-0")
        counter = CallCounter()
        counter.install()
        try:
            assert hf.network.acquire_router_lock("router-1", "job-1")
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        return counter.modules


def print_table() -> None:
    print(f"{'path':<24}{'modules':>8}{'calls':>8}")
    for path in (locks_run, http_claim, gateway_prompt, router_lock_on_files):
        with tempfile.TemporaryDirectory() as scratch:
            modules = path(Folder(Path(scratch)))
        print(f"{path.__name__:<24}{len(modules):>8}{modules.total():>8}")
        if "--modules" in sys.argv:
            for module, calls in modules.most_common():
                print(f"    {calls:>6}  {module}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        _count_command(sys.argv[2], sys.argv[3:])
    else:
        print_table()
