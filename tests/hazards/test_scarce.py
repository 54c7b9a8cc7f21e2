"""Descriptors run out, or the file system gives no locks: every operation says so in the library's
own words, and goes on working once there are some again. No error of the system's comes out as it
is.
"""

import errno
import fcntl
import itertools
import os
import resource
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.kernel.errors import HoldfastError
from holdfast.runtime.connection import Holdfast, connect
from tests.harness.children import exit_status_of
from tests.harness.timeouts import PATIENCE_S, until

STORES = ["sqlite", "files"]
SPARE = 12
"""How many descriptors more than none are tried."""
numbers = itertools.count()


def url_in(folder: Path, kind: str) -> str:
    return f"{kind}:{folder}/{'store.sqlite' if kind == 'sqlite' else 'store'}"


def swap(hf: Holdfast) -> None:
    with hf.workflows.swap("r"):
        pass


def listen(hf: Holdfast) -> None:
    with hf.store.listen(["a", "b"]):
        hf.store.transact(lambda tx: tx.notify("a"), scope=[])


def job(hf: Holdfast) -> None:
    hf.jobs.register_job("sort it", agent="agent", agent_session="s")
    picked = hf.jobs.pick_pending("s")
    if picked is not None:
        hf.jobs.update_status(picked.job_id, "completed", token=picked.token)


def host(hf: Holdfast) -> None:
    number = next(numbers)
    hf.network.register_host(
        f"h{number}",
        f"10.0.{number // 250}.{number % 250 + 1}",
        "router-1",
        f"02:00:00:00:00:{number:02x}",
    )


OPERATIONS: dict[str, Callable[[Holdfast], object]] = {
    "connect": lambda hf: connect(hf.settings.store).close(),
    "lock": lambda hf: hf.locks.acquire("router-1", by="run-1", timeout_s=1).release(),
    "locks": lambda hf: hf.locks.explain("router-1"),
    "job": job,
    "jobs": lambda hf: hf.jobs.list_jobs(),
    "agent": lambda hf: hf.agents.publish(
        f"a-{next(numbers)}", backend="command", tool="cat", manifest_path="/m"
    ),
    "swap": swap,
    "host": host,
    "listen": listen,
    "journal": lambda hf: hf.store.journal(),
    "audit log": lambda hf: hf.job_log.rebuild(hf.log, hf.jobs.peek) if hf.job_log else None,
}


def lowest_free() -> int:
    fd = os.open("/", os.O_PATH)
    os.close(fd)
    return fd


def outcome(hf: Holdfast, operation: Callable[[Holdfast], object]) -> str:
    """What an operation said; empty when it went well."""
    try:
        operation(hf)
    except HoldfastError as error:
        return error.message
    return ""


def in_child(work: Callable[[], None]) -> None:
    def loud() -> None:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            raise

    assert exit_status_of(loud) == 0


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("kind", STORES)
def test_with_too_few_descriptors_every_operation_says_so_and_works_again(
    tmp_path: Path, kind: str, name: str
) -> None:
    operation = OPERATIONS[name]

    def work() -> None:
        # What is loaded late is loaded before: a module that cannot be read is not ours to tell of.
        with connect(url_in(tmp_path, kind)) as hf:
            hf.workflows.register("w", recipe="r", preemptible=True)
            for each in OPERATIONS.values():
                each(hf)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        said = set()
        for spare in range(SPARE):
            with connect(url_in(tmp_path, kind)) as hf:
                resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free() + spare, hard))
                try:
                    said.add(outcome(hf, operation))
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                assert outcome(hf, operation) == "", "it works again"
        assert [message for message in said if message and "ulimit -n" not in message] == []

    in_child(work)


def no_locks(*_: object) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    real = fcntl.flock
    for module in [module for name, module in sys.modules.items() if name.startswith("holdfast")]:
        if getattr(module, "flock", None) is real:
            monkeypatch.setattr(module, "flock", no_locks)
    monkeypatch.setattr(fcntl, "flock", no_locks)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("kind", STORES)
def test_on_a_file_system_without_locks_every_operation_says_so(
    tmp_path: Path, kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(url_in(tmp_path, kind)) as hf:
        hf.workflows.register("w", recipe="r", preemptible=True)
        OPERATIONS[name](hf)
        with monkeypatch.context() as patched:
            without_locks(patched)
            said = outcome(hf, OPERATIONS[name])
        assert not said or "locks" in said, said
        assert outcome(hf, OPERATIONS[name]) == ""
    assert name not in ("connect", "lock", "job") or said, "these cannot do without"


class NoModules:
    """Says that no module of Holdfast is on the disk any more, as after an upgrade."""

    def find_spec(self, name: str, *_: object) -> None:
        if name.startswith("holdfast."):
            raise ModuleNotFoundError(f"{name} is loaded late")


def test_a_gate_that_is_shut_for_the_first_time_needs_no_module(tmp_path: Path) -> None:
    """A process that ran for long found a gate shut for the first time: it loaded a module for
    that, which failed without descriptors and after an upgrade, and its lock stayed held.
    """

    def work() -> None:
        with connect(url_in(tmp_path, "sqlite")) as hf:
            grant = hf.locks.acquire("router-1", by="run-1")
            hf.locks.status("router-1")
            gates = [os.open(path, os.O_RDWR) for path in tmp_path.glob("*-gate")]
            assert len(gates) == 2
            for gate in gates:
                fcntl.flock(gate, fcntl.LOCK_EX)
            sys.meta_path.insert(0, NoModules())
            released: list[bool] = []
            thread = threading.Thread(target=lambda: released.append(grant.release()))
            thread.start()
            until(
                lambda: (
                    not thread.is_alive()
                    or any(one.name == "holdfast-gate" for one in threading.enumerate())
                )
            )
            for gate in gates:
                os.close(gate)
            thread.join(PATIENCE_S)
            assert released == [True]

    in_child(work)
