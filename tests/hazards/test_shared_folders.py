"""A folder of jobs or workflows that another program changes at the same time, by its own rules:
each takes the folder's lock, so nobody decides by what the other is just changing.
"""

import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from holdfast import Holdfast
from holdfast.domains.jobs.records import JOBS, JobStatus
from holdfast.kernel.errors import LockTimeout, StoreUnavailable
from holdfast.kernel.store import Tx
from holdfast.runtime.maintenance import all_spaces
from holdfast.stores.files import maintenance
from holdfast.stores.files.disk import Disk, Location
from holdfast.stores.files.store import FilesStore
from holdfast.testing import faults
from tests.harness import source_registry
from tests.harness.children import KILLED, dies_at, exit_status_of
from tests.harness.processes import flock_waiters
from tests.harness.timeouts import PATIENCE_S, until
from tests.surfaces.command import CommandLine

LABEL = "tmux:claude"
SPACES = all_spaces()


class Source:
    """A process of the other program: no Holdfast in it."""

    def __init__(self, verb: str, folder: Path, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", source_registry.__file__, verb, str(folder), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> str:
        """Let it do what it waits with, and end; all that it says then."""
        out, _ = self.process.communicate("\n", timeout=PATIENCE_S)
        assert self.process.returncode == 0
        return out.strip()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def source(verb: str, folder: Path, *words: str) -> Iterator[Source]:
    process = Source(verb, folder, *words)
    try:
        yield process
    finally:
        process.end()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / ".hermes" / "jobs"


@contextmanager
def connected(folder: Path) -> Iterator[Holdfast]:
    with holdfast.connect(f"files:{folder}", folders={"jobs": "."}) as hf:
        yield hf


def on_disk(folder: Path) -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_bytes()) for path in folder.glob("*.json")}


def registered(folder: Path, count: int) -> list[str]:
    with source("register", folder, LABEL, str(count)) as other:
        return other.go_on().split()


def test_a_picker_of_the_other_program_and_ours_never_get_the_same_job(folder: Path) -> None:
    jobs = registered(folder, 120)
    with (
        source("pick-all", folder, LABEL) as other,
        source("pick-all", folder, LABEL) as another,
        connected(folder) as hf,
    ):
        mine = []
        while (job := hf.jobs.pick_pending(LABEL)) is not None:
            mine.append(job.job_id)
        theirs = [*other.go_on().split(), *another.go_on().split()]
    assert sorted(mine + theirs) == sorted(jobs)
    for job_id, record in on_disk(folder).items():
        assert record["status"] == "running"
        assert ("picked_by" in record) == (job_id in theirs)
        assert (record.get("attempt", 0) == 1) == (job_id in mine)


@pytest.mark.prove
def test_the_command_and_the_other_program_pick_side_by_side(folder: Path, tmp_path: Path) -> None:
    jobs = registered(folder, 12)
    command = CommandLine(tmp_path)

    def pick_all() -> list[str]:
        picked = []
        while (
            ran := command("jobs", "pick", "--registry-dir", str(folder), "--agent-session", LABEL)
        ).status == 0:
            picked.append(ran.out.strip())
        assert ran.status == 3, ran.err
        return picked

    with ThreadPoolExecutor(2) as pool, source("pick-all", folder, LABEL) as other:
        mine = [job_id for found in pool.map(lambda _: pick_all(), range(2)) for job_id in found]
        theirs = other.go_on().split()
    assert sorted(mine + theirs) == sorted(jobs)


def test_we_wait_for_its_lock_and_see_what_it_wrote_before_we_decide(folder: Path) -> None:
    (job_id,) = registered(folder, 1)
    with connected(folder) as hf, ThreadPoolExecutor(1) as pool:
        assert [job.job_id for job in hf.jobs.list_jobs()] == [job_id]
        with source("pick-slowly", folder, LABEL) as other:
            assert other.line() == "read"
            picking = pool.submit(hf.jobs.pick_pending, LABEL)
            until(lambda: flock_waiters(folder / ".lock") or picking.done())
            # To look takes no lock.
            assert hf.jobs.get_job(job_id).status.value == "pending"
            assert other.go_on() == job_id
        assert picking.result(PATIENCE_S) is None
    assert on_disk(folder)[job_id]["picked_by"] == other.process.pid


def test_it_waits_for_us_and_sees_what_we_wrote(folder: Path) -> None:
    (job_id,) = registered(folder, 1)
    with connected(folder) as hf:

        def claim_before_it(tx: Tx) -> Source:
            row = tx.get(JOBS, job_id)
            assert row is not None
            other = Source("pick-all", folder, LABEL)
            until(lambda: flock_waiters(folder / ".lock"))
            tx.put(JOBS, job_id, replace(row.record, status=JobStatus.CANCELLED))
            return other

        other = hf.store.transact(claim_before_it, scope=[JOBS])
    assert other.go_on() == ""
    assert on_disk(folder)[job_id]["status"] == "cancelled"


@pytest.mark.parametrize(
    "change", ["register", "status", "cancel", "requeue", "next_seq", "pick", "remove", "restore"]
)
def test_every_change_takes_the_lock(folder: Path, tmp_path: Path, change: str) -> None:
    first, second = registered(folder, 2)
    seen: list[bool] = []
    with connected(folder) as hf:
        assert isinstance(hf.store, FilesStore)
        store = hf.store
        store.administration.backup(SPACES, tmp_path / "saved")
        hf.jobs.update_status(second, "running")
        changes: dict[str, Callable[[], object]] = {
            "register": lambda: hf.jobs.register_job("more", agent="a", agent_session=LABEL),
            "status": lambda: hf.jobs.update_status(first, "running"),
            "cancel": lambda: hf.jobs.cancel(first),
            "requeue": lambda: hf.jobs.requeue(second),
            "next_seq": lambda: hf.jobs.next_seq(second),
            "pick": lambda: hf.jobs.pick_pending(LABEL),
            "remove": lambda: store.transact(lambda tx: tx.delete(JOBS, first), scope=[JOBS]),
            "restore": lambda: maintenance.restore(
                store, SPACES, tmp_path / "saved", boot_id=hf.processes.boot_id()
            ),
        }

        def look(point: str) -> None:
            if point in ("files.write.before", "files.rename.before", "files.unlink.before"):
                seen.append(is_locked(folder / ".lock"))

        with faults.armed(at=1 << 30, action=lambda _: None, passing=look):
            changes[change]()
    assert seen and all(seen), f"{change} wrote without the lock"
    assert not is_locked(folder / ".lock")


def is_locked(path: Path) -> bool:
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_when_it_keeps_the_lock_we_say_so_in_time_and_name_file_and_process(folder: Path) -> None:
    (job_id,) = registered(folder, 1)
    before = on_disk(folder)
    with connected(folder) as hf, source("hold", folder) as other:
        assert other.line() == "held"
        with pytest.raises(LockTimeout) as timed_out:
            hf.store.transact(lambda tx: tx.delete(JOBS, job_id), scope=[JOBS], timeout_s=0.05)
        assert timed_out.value.fields["resource"] == str(folder / ".lock")
        assert timed_out.value.fields["holder_pid"] == other.process.pid
        assert timed_out.value.fields["outcome"] == "none"
        assert (
            str(folder / ".lock") in timed_out.value.message
            and str(other.process.pid) in timed_out.value.message
        )
        assert on_disk(folder) == before
        # What lies in other files does not wait for it, nor do other changes behind ours.
        hf.network.register_host("h1", "10.0.0.1", "router-1", "02:00:00:00:00:01")
        # A killed process has lost its lock.
        other.end()
        assert hf.jobs.pick_pending(LABEL) is not None


def test_a_waiter_that_gave_up_leaves_no_request(folder: Path) -> None:
    registered(folder, 1)
    with connected(folder) as hf, source("hold", folder) as other:
        assert other.line() == "held"
        for _ in range(5):
            with pytest.raises(LockTimeout):
                hf.store.transact(lambda tx: tx.count(JOBS), scope=[JOBS], timeout_s=0.01)
        assert flock_waiters(folder / ".lock") <= 1
        other.end()
        until(lambda: not is_locked(folder / ".lock"))
        assert hf.jobs.pick_pending(LABEL) is not None


@pytest.mark.parametrize("what", ["link", "dangling", "folder", "fifo", "closed"])
def test_a_lock_that_is_no_plain_file_is_refused_and_nothing_is_changed(
    folder: Path, tmp_path: Path, what: str
) -> None:
    (job_id,) = registered(folder, 1)
    before, lock = on_disk(folder), folder / ".lock"
    lock.unlink()
    if what == "link":
        (tmp_path / "elsewhere").touch()
        lock.symlink_to(tmp_path / "elsewhere")
    elif what == "dangling":
        lock.symlink_to(tmp_path / "nowhere")
    elif what == "folder":
        lock.mkdir()
    elif what == "fifo":
        os.mkfifo(lock)
    else:
        if os.geteuid() == 0:
            pytest.skip("root may open everything")
        lock.touch(0o000)
    with connected(folder) as hf:
        with pytest.raises(StoreUnavailable) as refused:
            hf.jobs.pick_pending(LABEL)
        assert (
            refused.value.fields["path"] == str(lock) and refused.value.fields["outcome"] == "none"
        )
        assert hf.jobs.get_job(job_id).status.value == "pending"
    assert on_disk(folder) == before
    assert not (tmp_path / "nowhere").exists()


def test_a_read_only_lock_file_is_enough_and_a_replaced_one_is_taken_again(
    folder: Path,
) -> None:
    registered(folder, 3)
    (folder / ".lock").chmod(0o444)
    with connected(folder) as hf:
        assert hf.jobs.pick_pending(LABEL) is not None
        (folder / ".lock").unlink()
        with source("hold", folder) as other:
            assert other.line() == "held"
            with pytest.raises(LockTimeout):
                hf.store.transact(lambda tx: tx.count(JOBS), scope=[JOBS], timeout_s=0.01)
        (folder / ".lock").unlink()
        assert hf.jobs.pick_pending(LABEL) is not None
        assert (folder / ".lock").is_file()


def test_no_program_that_is_started_or_forked_meanwhile_keeps_the_lock(folder: Path) -> None:
    registered(folder, 1)
    with connected(folder) as hf:
        children: list[Any] = []
        forked_can_go = os.pipe()

        def body(_: Tx) -> None:
            children.append(
                subprocess.Popen(
                    [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False
                )
            )
            if (pid := os.fork()) == 0:
                os.read(forked_can_go[0], 1)
                os._exit(0)
            children.append(pid)

        hf.store.transact(body, scope=[JOBS])
        try:
            assert not is_locked(folder / ".lock")
            assert exit_status_of(lambda: hf.jobs.pick_pending(LABEL)) == 0
        finally:
            os.write(forked_can_go[1], b".")
            os.waitpid(children[1], 0)
            children[0].communicate(b"\n")
            for fd in forked_can_go:
                os.close(fd)


def test_a_killed_claim_does_not_take_the_job_from_its_next_worker(
    folder: Path,
) -> None:
    """The claim is committed, its file is not written, and the lock ended with the process. The
    other program sees a pending job and takes it. That claim is then valid, also for a process that
    finishes the dead one's work.
    """
    (job_id,) = registered(folder, 1)

    def claim() -> None:
        with connected(folder) as hf, faults.at_point("files.rename.before", faults.kill):
            hf.jobs.pick_pending(LABEL)

    assert exit_status_of(claim) == KILLED
    with source("pick-all", folder, LABEL) as other:
        assert other.go_on() == job_id
    with connected(folder) as hf:
        assert hf.jobs.pick_pending(LABEL) is None
        hf.jobs.reap()
        assert hf.jobs.pick_pending(LABEL) is None
        assert hf.jobs.get_job(job_id).status.value == "running"
        conflicts = [
            entry for entry in hf.store.journal().entries if entry.kind == "store.conflict"
        ]
        assert [entry.subject for entry in conflicts] == [f"{job_id}.json"]
    record = on_disk(folder)[job_id]
    assert record["picked_by"] == other.process.pid and "attempt" not in record


@pytest.mark.prove
def test_killed_at_every_point_a_job_has_one_worker(tmp_path: Path) -> None:
    killed, at = True, 0
    while killed:
        folder = tmp_path / str(at)
        (job_id,) = registered(folder, 1)
        with connected(folder) as hf:
            killed = dies_at(lambda hf=hf: hf.jobs.pick_pending(LABEL), at)  # type: ignore[misc]
        theirs = source_registry.pick(str(folder), LABEL)
        with connected(folder) as hf:
            mine = hf.jobs.pick_pending(LABEL)
        record = on_disk(folder)[job_id]
        owners = [theirs is not None, mine is not None, theirs is None and mine is None]
        # The last is the killed one's: its claim was whole, so nobody else got the job.
        assert owners.count(True) == 1, at
        assert record["status"] == "running" and ("picked_by" in record) == owners[0], at
        assert (record.get("attempt") == 1) != owners[0], at
        at += 1
    assert at > 10


def test_no_file_of_another_program_looks_like_one_that_we_have_just_written(
    tmp_path: Path,
) -> None:
    """A file system gives the number of a removed file to a new one, and the kernel's time of a
    file stands still for milliseconds. So a job that the other program takes at once could look as
    we wrote it: pending. Our files have times to the nanosecond, which no other has.
    """
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path
    with TemporaryDirectory(dir=memory) as folder:
        disk = Disk(1, 0)
        for number in range(500):
            disk.stage(Location(Path(folder), str(number)), b"{}")
        times = {path.stat().st_mtime_ns for path in Path(folder).iterdir()}
    assert len(times) == 500


def test_repairing_or_removing_a_workflow_record_takes_their_lock(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    with holdfast.connect(f"files:{folder}") as hf:
        hf.workflows.register("train", "llama")
        hf.workflows.register("eval", "llama")
        (folder / "workflows.json").write_text("{")
        with open(folder / ".workflows.lock", "a") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            with pytest.raises(LockTimeout):
                hf.store.read(
                    lambda tx: None,
                    scope=[space for space in SPACES if space.name == "workflows"],
                    timeout_s=0.05,
                )
            assert (folder / "workflows.json").read_text() == "{"


def test_threads_of_one_process_take_turns(folder: Path) -> None:
    jobs = registered(folder, 30)
    begin = threading.Barrier(4)
    with (
        connected(folder) as hf,
        source("pick-all", folder, LABEL) as other,
        ThreadPoolExecutor(4) as pool,
    ):

        def pick_all(_: int) -> list[str]:
            begin.wait(PATIENCE_S)
            picked = []
            while (job := hf.jobs.pick_pending(LABEL)) is not None:
                picked.append(job.job_id)
            return picked

        mine = [job_id for found in pool.map(pick_all, range(4)) for job_id in found]
        theirs = other.go_on().split()
    assert sorted(mine + theirs) == sorted(jobs)
