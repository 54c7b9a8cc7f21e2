"""The other side of an adopted registry: the published package of Houmao, in an environment of its
own, so that its own code judges what Holdfast writes.
"""

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.harness.ports import spare_port
from tests.harness.requirements import skip_or_fail
from tests.harness.timeouts import PATIENCE_S, until

VERSION = "2.1.0"
OTHER_SIDE = Path(__file__).parent / "houmao_side.py"
_INSTALL_S = 600.0


def houmao_python() -> str:
    """The Python that has the package: that of HOUMAO_PYTHON, else of an environment that is
    made once and kept. Skips the test where it cannot be installed.
    """
    if given := os.environ.get("HOUMAO_PYTHON"):
        return given
    root = Path(tempfile.gettempdir()) / f"holdfast-houmao-{VERSION}-{os.getuid()}"
    python = root / "bin" / "python"
    with open(f"{root}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (root / "complete").exists():
            return str(python)
        shutil.rmtree(root, ignore_errors=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--retries", "1"]
        for words in ([sys.executable, "-m", "venv", str(root)], [*install, f"houmao=={VERSION}"]):
            done = subprocess.run(
                words, capture_output=True, text=True, check=False, timeout=_INSTALL_S
            )
            if done.returncode:
                why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
                skip_or_fail(f"houmao {VERSION} cannot be installed: {why}")
        (root / "complete").touch()
    return str(python)


class Houmao:
    """Its code on one registry; `environment` has the tmux server that it sees."""

    def __init__(self, folder: Path, registry: Path, environment: dict[str, str]) -> None:
        self._python = houmao_python()
        self.registry = registry
        self._folder = folder
        outside = {name: value for name, value in os.environ.items() if not name.startswith("TMUX")}
        self._environment = {
            **outside,
            **environment,
            "HOME": str(folder),
            "HOUMAO_GLOBAL_REGISTRY_DIR": str(registry),
            "HOUMAO_GLOBAL_RUNTIME_DIR": str(folder / "runtime"),
        }

    def __call__(self, what: str, **facts: Any) -> Any:
        """Run a function of `houmao_side.py`, and return its result. Raises AssertionError with its
        error.
        """
        done = subprocess.run(
            [self._python, str(OTHER_SIDE), what, json.dumps(facts)],
            env=self._environment,
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @contextmanager
    def passive_server(self, **facts: Any) -> Iterator[str]:
        """Its passive server, with one headless agent of its own; yields the URL."""
        port = spare_port()
        url = f"http://127.0.0.1:{port}"
        words = [self._python, str(OTHER_SIDE), "serve", json.dumps({"url": url, **facts})]
        with open(self._folder / "passive.log", "wb") as log:
            server = subprocess.Popen(
                words, env=self._environment, cwd=self._folder, stdout=log, stderr=log
            )
        try:
            until(lambda: server.poll() is not None or _answers(port))
            assert server.poll() is None, (self._folder / "passive.log").read_text()
            yield url
        finally:
            server.terminate()
            server.wait(PATIENCE_S)


def _answers(port: int) -> bool:
    """Whether the server accepts connections, which it does when it has started."""
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0
