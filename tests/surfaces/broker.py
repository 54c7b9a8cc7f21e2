"""A real message broker for the tests: mosquitto, on a port of this machine alone."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.harness.requirements import skip_or_fail
from tests.harness.timeouts import PATIENCE_S, until

USER, PASSWORD = "worker", "correct-horse-battery"


def program() -> str:
    """mosquitto, or a skip by name, which is a failure in CI."""
    found = shutil.which("mosquitto", path=os.environ["PATH"] + ":/usr/sbin")
    if found is None:
        skip_or_fail("no message broker here: apt-get install mosquitto")
    return found


class Broker:
    """A broker that the test stops and starts."""

    def __init__(self, folder: Path, *, secured: bool = False) -> None:
        self.program = program()
        self.folder = folder
        self.secured = secured
        folder.mkdir()
        self._place = _reserved()
        self.port = int(self._place.getsockname()[1])
        self._process: subprocess.Popen[bytes] | None = None
        lines = [f"listener {self.port} 127.0.0.1", "persistence false", "user root"]
        lines += self._secure() if secured else ["allow_anonymous true"]
        (folder / "mosquitto.conf").write_text("\n".join(lines) + "\n")

    @property
    def environment(self) -> dict[str, str]:
        """What a command needs to reach it."""
        plain = {
            "MQTT_BROKER": "localhost" if self.secured else "127.0.0.1",
            "MQTT_PORT": str(self.port),
        }
        if not self.secured:
            return plain
        ca = str(self.folder / "ca.pem")
        return {
            **plain,
            "MQTT_TLS": "1",
            "MQTT_CA_CERTS": ca,
            "MQTT_USERNAME": USER,
            "MQTT_PASSWORD": PASSWORD,
        }

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.program, "-v", "-c", self.folder / "mosquitto.conf"],
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end and self._process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.02)
        raise RuntimeError((self.folder / "log").read_text()[-2000:])

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(PATIENCE_S)
            self._process = None

    def close(self) -> None:
        """End it for good."""
        self.stop()
        self._place.close()

    def kill(self) -> None:
        """End it with -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
            self._process = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def logged(self, word: str) -> int:
        """How often the broker has logged a word."""
        return (self.folder / "log").read_text(errors="replace").count(word)

    def wait_for(self, word: str, times: int = 1) -> None:
        """Until the broker has logged a word so often."""
        until(
            lambda: self.logged(word) >= times,
            saw=lambda: f"no {word}: {(self.folder / 'log').read_text()[-2000:]}",
        )

    def _secure(self) -> list[str]:
        """A certificate of an authority that only this test knows, and a password."""
        import trustme

        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(self.folder / "ca.pem"))
        own = authority.issue_cert("localhost", "127.0.0.1")
        own.private_key_pem.write_to_path(str(self.folder / "key.pem"))
        own.cert_chain_pems[0].write_to_path(str(self.folder / "cert.pem"))
        users = self.folder / "users"
        users.write_text(f"{USER}:{PASSWORD}\n")
        subprocess.run(
            [shutil.which("mosquitto_passwd") or "mosquitto_passwd", "-U", users],
            check=True,
            capture_output=True,
        )
        return [
            "allow_anonymous false",
            f"password_file {users}",
            f"certfile {self.folder / 'cert.pem'}",
            f"keyfile {self.folder / 'key.pem'}",
        ]


@contextmanager
def running(folder: Path, *, secured: bool = False) -> Iterator[Broker]:
    """A broker that runs, for the block."""
    broker = Broker(folder, secured=secured)
    broker.start()
    try:
        yield broker
    finally:
        broker.close()


def _reserved() -> socket.socket:
    """A port that nobody is given by chance for as long as this is open, also while the broker is
    away. It is bound and never listened at, so that the broker, which asks for the address all the
    same, may have it.
    """
    place = socket.socket()
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    place.bind(("127.0.0.1", 0))
    return place
