"""The servers that some peers need, each in a temporary folder of its own and reached by a socket
file there.
"""

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

_START_TIMEOUT_S = 20.0

_POSTGRES = {"listen_addresses": "", "max_connections": "200"}
"""The default settings, except that only the processes of a row may connect. It syncs before it
acknowledges a commit.
"""


@contextmanager
def redis(*, durable: bool = False) -> Iterator[str | None]:
    """A Redis that keeps nothing on disk, or syncs every change if it is durable: the path of its
    socket, or None if Redis is not installed.
    """
    program = shutil.which("redis-server")
    if program is None:
        yield None
        return
    # Not the folder of the run: the path of a socket is limited in length.
    folder = Path(tempfile.mkdtemp(prefix="hfredis-"))
    address = folder / "socket"
    disk = ["--appendonly", "yes", "--appendfsync", "always"] if durable else ["--appendonly", "no"]
    command = [
        program,
        "--port",
        "0",
        "--unixsocket",
        str(address),
        "--save",
        "",
        *disk,
        "--dir",
        str(folder),
    ]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        if not _answers(address, server):
            raise RuntimeError("redis-server did not start")
        yield str(address)
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(folder)


@contextmanager
def postgres() -> Iterator[str | None]:
    """A PostgreSQL: the URL of a new database, or None if the server or its driver is not
    installed.
    """
    try:
        from tests.stores.postgres_server import binaries, serving
    except ImportError:
        yield None
        return
    found = binaries()
    if found is None:
        yield None
        return
    with serving(found, _POSTGRES) as server:
        yield server.database()


def versions() -> dict[str, str]:
    """The versions of the installed servers."""
    found = {"redis": shutil.which("redis-server")}
    if find_spec("psycopg"):
        from tests.stores.postgres_server import binaries

        folder = binaries()
        found["postgres"] = str(folder / "postgres") if folder else None
    return {name: _version(program) for name, program in found.items() if program}


def _version(program: str) -> str:
    said = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
    # `Redis server v=7.0.15 ...` and `postgres (PostgreSQL) 15.18 ...`
    return next(
        word.removeprefix("v=") for word in said.split() if word.removeprefix("v=")[0].isdigit()
    )


def _answers(address: Path, server: "subprocess.Popen[bytes]") -> bool:
    end = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < end and server.poll() is None:
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(address)) == 0:
                return True
        time.sleep(0.02)
    return False
