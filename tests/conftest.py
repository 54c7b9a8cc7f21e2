"""Fixtures of all tests."""

import gc
import logging
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from holdfast.stores import listener
from tests.harness.timeouts import NEVER_S

# Hypothesis has no time limit for an example or for making one: on a busy machine a test would fail
# for being slow, which proves nothing.
settings.register_profile("holdfast", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("holdfast")

FOREIGN = ("HOLDFAST_", "DELEGATE_", "MQTT_", "TMUX", "PG", "XDG_")

if TYPE_CHECKING:
    from tests.harness.tmux_server import TmuxServer
    from tests.stores.postgres_server import Server


def pytest_configure() -> None:
    """Receive the terminal's signals, also in a run behind nohup or in the background: a signal
    that is ignored here is ignored by every process that a test starts, and then none of them can
    be interrupted.
    """
    for number, usual in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGQUIT, signal.SIG_DFL),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


def pytest_collection_finish() -> None:
    """Keep the objects of the collection out of the garbage collections after each module: walking
    them took half a second of CPU each time.
    """
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print at how many points exceptions were raised on each store
    (`hazards/test_interruptions.py`).
    """
    points: Counter[str] = Counter()
    for report in (*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")):
        for name, value in getattr(report, "user_properties", []):
            if name == "points":
                points[value[0]] += value[1]
    for store, number in points.items():
        terminalreporter.write_line(f"exceptions raised at {number} points on {store}")


@pytest.fixture(scope="session", autouse=True)
def _nothing_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The user's environment leads no test to another place, and least of all to the store of the
    user who runs the tests.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(FOREIGN)]:
            patch.delenv(name)
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_left_open() -> Iterator[None]:
    """Collect garbage after each module. An SQLite connection is part of a reference cycle; since
    Python 3.13 one that nobody closed is a ResourceWarning, which would otherwise fail a test
    elsewhere, whenever the collector runs.
    """
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def _warnings_stay_with_their_test() -> Iterator[None]:
    """A command that a test runs in its own process may print warnings shortly after its end: those
    of one test appeared in the next.
    """
    yield
    warned = sys.modules.get("holdfast.surfaces.cli.logs")
    if warned is not None:
        logging.getLogger("holdfast").removeHandler(warned.WARNINGS)
        warned.WARNINGS.flush()


@pytest.fixture
def no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """No sleeper rechecks by itself, here and in forked children, so that a missing wake-up shows."""
    monkeypatch.setattr(listener, "WAIT_RECHECK_S", NEVER_S)


@pytest.fixture
def sleeper() -> "Iterator[subprocess.Popen[bytes]]":
    """A process that does nothing, for a test to kill."""
    with subprocess.Popen(["sleep", "infinity"]) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="session")
def postgres_server() -> "Iterator[Server]":
    """One real PostgreSQL for all tests of a run, started for the first that needs it."""
    # Here, so that tests that need no database load no driver.
    from tests.stores.postgres_server import running

    with running() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: "Server") -> Iterator[str]:
    """The URL of a new, empty database of that server."""
    url = postgres_server.database()
    yield url
    postgres_server.drop(url)


@pytest.fixture
def tmux() -> "Iterator[TmuxServer]":
    """A tmux in which a program listens."""
    from tests.harness.tmux_server import tmux_server

    with tmux_server() as server:
        server.listen()
        yield server


@pytest.fixture(scope="module")
def module_database(postgres_server: "Server") -> Iterator[str]:
    """One database for the tests of a module, each of which has a namespace of its own."""
    url = postgres_server.database()
    yield url
    postgres_server.drop(url)
