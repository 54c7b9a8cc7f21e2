"""Swappers that are killed, stopped, forked or cut off: a dead swap never wedges anybody, and a
live one is never broken.
"""

import json
import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

import holdfast
from holdfast.domains.workflows import Swap
from holdfast.domains.workflows.wire import SWAP_MARKER
from holdfast.kernel.errors import EAgain, HoldfastError, LeaseLost, LockTimeout
from holdfast.runtime.configuration import signal_folder_of
from holdfast.runtime.connection import Holdfast
from holdfast.stores.files.store import FilesStore
from holdfast.testing import faults
from tests.harness.children import Child
from tests.harness.stores import store_url
from tests.harness.timeouts import PATIENCE_S, until

READERS = 8

_KEPT: list[object] = []
"""Swaps of a child that did not leave their block: one without references releases its lock."""


@pytest.fixture(params=["sqlite", "files", pytest.param("postgres", marks=pytest.mark.prove)])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    # Signal files of a database's workflows lie below the home.
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    return store_url(request, tmp_path)


@pytest.fixture
def hf(url: str) -> Iterator[Holdfast]:
    with holdfast.connect(url) as connected:
        yield connected


def events(hf: Holdfast) -> Counter[str]:
    return Counter(event.event for event in hf.workflows.swap_log())


def signals_of(hf: Holdfast) -> list[str]:
    """The signal files that lie there."""
    folder = (
        hf.store.root / ".holdfast/workflows/default/signals"
        if isinstance(hf.store, FilesStore)
        else signal_folder_of(hf.store)
    )
    return os.listdir(folder) if folder.exists() else []


def mirrored(hf: Holdfast) -> Counter[str]:
    """The events of the swap log; for plain files those in its file, where each line must occur
    once.
    """
    if hf.store.kind != "files":
        return events(hf)
    # Nothing may have changed since one was killed before it could tell.
    hf.catch_up()
    path = Path(hf.store.root, "swap_log.jsonl")  # type: ignore[attr-defined]
    lines = path.read_text().splitlines() if path.exists() else []
    assert len(set(lines)) == len(lines)
    return Counter(json.loads(line)["event"] for line in lines)


class LoadedNow(NamedTuple):
    """The recipe that is loaded, or the one whose load left that unknown."""

    current: str | None
    unknown: str | None

    @staticmethod
    def of(hf: Holdfast) -> "LoadedNow":
        status = hf.workflows.swap_status()
        current, unknown = status.current, status.unknown
        return LoadedNow(
            None if current is None else current.recipe, None if unknown is None else unknown.recipe
        )


def complete(hf: Holdfast, recipe: str) -> None:
    with hf.workflows.swap(recipe, timeout_s=PATIENCE_S):
        pass


def fail(hf: Holdfast, recipe: str) -> None:
    with suppress(RuntimeError), hf.workflows.swap(recipe, timeout_s=PATIENCE_S):
        raise RuntimeError("no such model")


def give_up(hf: Holdfast, recipe: str) -> None:
    """There is work that may be preempted and does not yield."""
    with suppress(LockTimeout):
        hf.workflows.swap(recipe, grace_s=0, timeout_s=0).__enter__()


def killed_at(url: str, work: Callable[[Holdfast, str], None], recipe: str, point: int) -> bool:
    """Do some work in another process that kills itself at one of its points; False if it did not
    come that far.
    """
    pid = os.fork()
    if not pid:
        try:
            connection = holdfast.connect(url)
            connection.workflows.swap_status()
            with faults.armed(at=point, action=faults.kill):
                work(connection, recipe)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def looked_at_once(readers: list[Holdfast]) -> None:
    """All check at the same moment; nobody sees a swap."""
    barrier = threading.Barrier(len(readers))
    seen: list[object] = []

    def look(reader: Holdfast) -> None:
        barrier.wait(PATIENCE_S)
        try:
            seen.append(reader.workflows.swap_status().marker)
        except BaseException as error:
            seen.append(error)

    threads = [threading.Thread(target=look, args=(reader,)) for reader in readers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert seen == [None] * len(readers)


@pytest.mark.prove
@pytest.mark.parametrize("work", [complete, fail, give_up])
def test_a_swapper_killed_at_any_step_blocks_nobody_and_is_cleared_once(
    hf: Holdfast, url: str, work: Callable[[Holdfast, str], None]
) -> None:
    if work is give_up:
        hf.workflows.register("tune", "old", preemptible=True, ttl_s=3600)
    # A change of plain files has many steps, all of which one of the three goes through.
    stride = 4 if hf.store.kind == "files" and work is not complete else 1
    with ExitStack() as opened:
        readers = [opened.enter_context(holdfast.connect(url)) for _ in range(READERS)]
        before, loaded, orphans = events(hf), LoadedNow(None, None), 0
        point = loads = 0
        while killed_at(url, work, f"r{point}", point):
            looked_at_once(readers)
            after = events(hf)
            reported = after - before
            ended = reported["swap_completed"] + reported["swap_failed"] + reported["swap_refused"]
            # Whatever began has ended once, by itself or by the first of those who looked.
            assert reported["swap_started"] == ended + reported["orphan_marker_cleared"] <= 1, (
                f"at point {point}"
            )
            orphans += reported["orphan_marker_cleared"]
            if reported["swap_completed"]:
                loaded = LoadedNow(f"r{point}", None)
            elif reported and hf.workflows.swap_log()[-1].data.get("unknown"):
                # It had started to load, and nobody saw the load succeed.
                loaded = LoadedNow(None, f"r{point}")
            assert LoadedNow.of(hf) == loaded, f"at point {point}"
            loads += reported["orphan_marker_cleared"] and loaded.unknown == f"r{point}"
            # A database notices a moment later that a connection has ended.
            until(lambda: not hf.workflows._context.swap_lock.is_held())
            # What it asked for is not asked any more.
            assert signals_of(hf) == [], f"at point {point}"
            assert mirrored(hf) == after, f"at point {point}"
            if work is give_up:
                assert hf.workflows.get("tune").preempt.value == "none"
            before, point = after, point + stride
        assert point > 5 and orphans > 3
        # Some were killed before the load, and some in it.
        assert (0 < loads < orphans) is (work is not give_up)
        # Everything continues.
        hf.workflows.register("next", "another")


def test_the_next_swapper_goes_on_at_once_when_the_one_before_it_is_killed(
    hf: Holdfast, url: str
) -> None:
    def swap() -> None:
        connection = holdfast.connect(url)
        _KEPT.append(connection.workflows.swap("first").__enter__())

    child = Child(swap)
    waits = threading.Event()
    done: list[str] = []

    def wait() -> None:
        with hf.workflows.swap("second", timeout_s=PATIENCE_S, on_wait=lambda _: waits.set()):
            done.append("loaded")

    thread = threading.Thread(target=wait)
    thread.start()
    assert waits.wait(PATIENCE_S)
    child.kill()
    thread.join(PATIENCE_S)
    assert done == ["loaded"]
    assert events(hf)["orphan_marker_cleared"] == 1


def test_a_stopped_swapper_is_not_broken(hf: Holdfast, url: str) -> None:
    go, going = os.pipe()

    def swap() -> None:
        connection = holdfast.connect(url)
        with connection.workflows.swap("llama"):
            os.kill(os.getpid(), signal.SIGSTOP)
            os.read(go, 1)

    pid = os.fork()
    if not pid:
        try:
            swap()
            os._exit(0)
        finally:
            os._exit(1)
    os.waitpid(pid, os.WUNTRACED)
    for _ in range(3):
        live, cleared = hf.workflows.reconcile_swap_marker()
        assert live is not None and live.holder.pid == pid and cleared is None
    with pytest.raises(EAgain):
        hf.workflows.register("x", "qwen")
    os.kill(pid, signal.SIGCONT)
    os.write(going, b".")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    loaded = hf.workflows.swap_status().current
    assert loaded is not None and loaded.recipe == "llama"
    os.close(go)
    os.close(going)


def test_a_child_of_a_swapper_does_not_keep_its_lock(hf: Holdfast, url: str) -> None:
    """As a model server that the load left running: forked, or started as a program."""
    alive, living = os.pipe()
    os.set_inheritable(alive, True)

    def swap() -> None:
        connection = holdfast.connect(url)
        _KEPT.append(connection.workflows.swap("llama").__enter__())
        # The children live until the last writing end is closed, which is the test's.
        os.close(living)
        if not os.fork():
            os.read(alive, 1)
            os._exit(0)
        if not os.fork():
            os.dup2(alive, 0)
            os.execvp("cat", ["cat"])

    child = Child(swap)
    live, _ = hf.workflows.reconcile_swap_marker()
    assert live is not None and live.holder.pid == child.pid
    child.kill()
    live, cleared = hf.workflows.reconcile_swap_marker()
    assert live is None and cleared is not None
    with hf.workflows.swap("qwen", timeout_s=PATIENCE_S):
        pass
    os.close(living)
    os.close(alive)


def test_the_process_that_forked_in_a_swap_completes_it_and_its_child_cannot(hf: Holdfast) -> None:
    with hf.workflows.swap("llama") as swap:
        pid = os.fork()
        if not pid:
            status = 1
            try:
                swap.check()
            except LeaseLost:
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        swap.check()
    assert events(hf) == {"swap_started": 1, "swap_completed": 1}


@pytest.mark.parametrize("how", ["raises", "ends well", "fails it"])
def test_a_forked_child_that_leaves_the_block_of_a_swap_ends_nothing(
    hf: Holdfast, how: str
) -> None:
    """As a load that forks a server, which gives up before it has become another program."""

    def leave(swap: Swap) -> None:
        if how == "fails it":
            swap.fail("no such model")
        swap.__exit__(
            *(
                (OSError, OSError("no such program"), None)
                if how == "raises"
                else (None, None, None)
            )
        )

    with hf.workflows.swap("llama") as swap:
        assert _status_of_child(lambda: leave(swap)) == 0
        swap.check()
    assert events(hf) == {"swap_started": 1, "swap_completed": 1}


def test_a_forked_child_that_leaves_the_block_of_its_parents_work_releases_nothing(
    hf: Holdfast,
) -> None:
    with hf.workflows.running("train", "llama") as work:
        assert (
            _status_of_child(lambda: work.__exit__(OSError, OSError("no such program"), None)) == 0
        )
        assert [workflow.name for workflow in hf.workflows.list_workflows()] == ["train"]
        assert not work.should_yield()
    assert hf.workflows.list_workflows() == []


def _status_of_child(act: Callable[[], None]) -> int:
    pid = os.fork()
    if not pid:
        status = 1
        try:
            act()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _swaps(task: tuple[str, str]) -> int:
    url, recipe = task
    with holdfast.connect(url) as hf:
        for _ in range(4):
            with hf.workflows.swap(recipe, timeout_s=120, reload=True) as swap:
                swap.check()
    return 4


@pytest.mark.prove
def test_live_swappers_that_hand_over_to_each_other_are_never_broken_by_readers(
    hf: Holdfast, url: str
) -> None:
    over = threading.Event()

    def read() -> None:
        with holdfast.connect(url) as reader:
            while not over.is_set():
                reader.workflows.reconcile_swap_marker()

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            assert pool.map_async(_swaps, [(url, "a"), (url, "b")], chunksize=1).get(
                PATIENCE_S
            ) == [4, 4]
    finally:
        over.set()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert events(hf) == {"swap_started": 8, "swap_completed": 8}


@pytest.mark.prove
def test_a_swapper_whose_database_session_dropped_cannot_complete(
    postgres_url: str, tmp_path: Path
) -> None:
    import psycopg

    with holdfast.connect(postgres_url) as hf, holdfast.connect(postgres_url) as other:
        with hf.workflows.swap("first"):
            pass
        swap = hf.workflows.swap("llama").__enter__()
        lost = swap._contender._raw.info.backend_pid  # type: ignore[union-attr]
        with psycopg.connect(postgres_url, autocommit=True) as operator:
            assert operator.execute(
                "SELECT pg_terminate_backend(%s, 10000)", (lost,)
            ).fetchone() == (True,)
        with pytest.raises(LeaseLost, match="lost its lock"):
            swap.__exit__(None, None, None)
        status = other.workflows.swap_status()
        assert status.marker is None and LoadedNow.of(other) == (None, "llama")
        assert other.store.get(SWAP_MARKER, "only") is None
        assert events(other)["orphan_marker_cleared"] == 1
        with other.workflows.swap("qwen", timeout_s=PATIENCE_S):
            pass


def test_an_owner_killed_with_minus_9_is_swept_and_its_swap_goes_on(hf: Holdfast, url: str) -> None:
    def work() -> None:
        holdfast.connect(url).workflows.register("train", "old", ttl_s=3600)

    child = Child(work)
    assert [workflow.name for workflow in hf.workflows.list_workflows()] == ["train"]
    waits, done = threading.Event(), threading.Event()

    def swap() -> None:
        with (
            suppress(HoldfastError),
            hf.workflows.swap("new", timeout_s=PATIENCE_S, on_wait=lambda _: waits.set()),
        ):
            done.set()

    thread = threading.Thread(target=swap)
    thread.start()
    assert waits.wait(PATIENCE_S)
    child.kill()
    thread.join(PATIENCE_S)
    assert done.is_set() and hf.workflows.list_workflows() == []
