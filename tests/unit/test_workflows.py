"""Workflows: who may register during a swap, who is swept, and whose word counts. On every store."""

import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.domains.workflows import Preempt, Workflow, Workflows
from holdfast.domains.workflows.records import TRANSITIONS, moved
from holdfast.domains.workflows.wire import ONLY, SWAP_MARKER, WORKFLOWS, topic_of
from holdfast.kernel import threads
from holdfast.kernel.errors import (
    Corrupt,
    EAgain,
    Fenced,
    Held,
    ImpossibleTransition,
    InvalidName,
    InvalidValue,
    LeaseLost,
    NotFound,
    NotLoaded,
    RecordInvalid,
)
from holdfast.kernel.store import Store, Tx
from holdfast.stores.files.store import FilesStore
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from tests.harness.errors import raises
from tests.harness.machine import Machine
from tests.harness.timeouts import PATIENCE_S, until
from tests.unit.swap_world import lose_lock
from tests.unit.workflows_world import STORES, World, world_on


@pytest.fixture(params=STORES)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with world_on(request.param, tmp_path, request) as made:
        yield made


def names(world: World) -> list[str]:
    return [workflow.name for workflow in world.workflows.list_workflows()]


# --- registering ---


def register_and_set(workflows: Workflows, done: threading.Event) -> None:
    workflows.register("train", "qwen", wait_s=PATIENCE_S)
    done.set()


def test_a_registration_says_whether_a_swap_is_needed(world: World) -> None:
    registered = world.workflows.register("train", "llama")
    assert registered.swap_needed
    assert registered.workflow.recipe == "llama" and registered.workflow.owner.pid == 1
    world.workflows.release("train", registered.workflow.token)
    with world.workflows.swap("llama"):
        pass
    assert not world.workflows.register("train", "llama").swap_needed
    assert world.workflows.register("other", "qwen").swap_needed
    assert names(world) == ["other", "train"]


def test_the_command_that_would_load_a_recipe_can_be_pasted(world: World) -> None:
    with world.workflows.swap("llama"):
        pass
    with pytest.raises(NotLoaded, match=r"`holdfast swap to 'qwen 7b; reboot' -- COMMAND`"):
        world.workflows.register("eval", "qwen 7b; reboot", loaded_only=True)


def test_work_whose_block_never_begins_is_released(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C as its thread is started: it stayed registered for its whole time to live, and kept
    every swap away.
    """

    def interrupted(_: threading.Thread) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(threads, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), world.workflows.running("train", "qwen"):
        raise AssertionError("it began")
    assert world.workflows.list_workflows() == []


def test_work_that_begins_at_once_is_refused_on_another_recipe(world: World) -> None:
    """It began on whatever was loaded, with a warning."""
    # Where nothing was ever loaded, nothing is known to be wrong.
    first = world.workflows.register("first", "llama", loaded_only=True)
    assert first.swap_needed
    world.workflows.release("first", first.workflow.token)
    with world.workflows.swap("llama") as swap:
        pass
    assert not world.workflows.register("train", "llama", loaded_only=True).swap_needed
    before = world.kinds()
    with pytest.raises(NotLoaded) as caught:
        world.workflows.register("other", "qwen", loaded_only=True)
    fields = caught.value.fields
    assert (fields["recipe"], fields["loaded"], fields["token"]) == ("qwen", "llama", swap.token)
    assert fields["by"] == "p1 (process 1)" and "holdfast swap to qwen" in caught.value.message
    with pytest.raises(NotLoaded), world.workflows.running("other", "qwen"):
        raise AssertionError("it must not begin")
    assert names(world) == ["train"] and world.kinds() == before
    with world.workflows.running("other", "qwen", any_recipe=True) as work:
        assert work.swap_needed and names(world) == ["other", "train"]


def test_work_is_refused_while_it_is_unknown_what_is_loaded(world: World) -> None:
    with world.workflows.swap("llama"):
        pass
    world.workflows.swap("qwen").__enter__().fail("exit status 9", exit_status=9)
    for recipe in ("llama", "qwen"):
        with pytest.raises(NotLoaded) as caught:
            world.workflows.running("train", recipe).__enter__()
        fields = caught.value.fields
        assert (fields["loaded"], fields["failed"], fields["exit_status"]) == (None, "qwen", 9)
    assert names(world) == []
    assert world.workflows.register("train", "llama").swap_needed


def test_work_that_begins_at_once_is_refused_until_its_recipe_is_loaded(world: World) -> None:
    with world.process(2).swap("llama"):
        with pytest.raises(EAgain):
            world.workflows.register("train", "llama", loaded_only=True)
        # To say that it is needed is allowed.
        world.workflows.register("train", "llama")
    assert not world.workflows.register("train", "llama", loaded_only=True).swap_needed


@pytest.mark.parametrize("loaded", ["llama", "unknown"])
def test_work_that_waits_begins_when_its_recipe_is_loaded(world: World, loaded: str) -> None:
    with world.workflows.swap("llama") as swap:
        if loaded == "unknown":
            swap.fail("out of memory")
    reported: list[object] = []
    waits, begun = threading.Event(), threading.Event()

    def work() -> None:
        def tell(in_the_way: object) -> None:
            reported.append(in_the_way)
            waits.set()

        with world.process(2).running("train", "qwen", wait_s=PATIENCE_S, on_wait=tell):
            begun.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert waits.wait(PATIENCE_S)
    with world.workflows.swap("qwen", timeout_s=PATIENCE_S):
        assert not begun.is_set()
    assert begun.wait(PATIENCE_S)
    thread.join(PATIENCE_S)
    status = world.workflows.swap_status()
    assert status.current is not None and status.current.recipe == "qwen" and reported


def test_a_name_is_one_owners(world: World) -> None:
    first = world.workflows.register("train", "llama").workflow
    other = world.process(2)
    with pytest.raises(Held) as caught:
        other.register("train", "qwen")
    assert caught.value.fields == {"workflow": "train", "owner_pid": 1, "recipe": "llama"}
    assert world.workflows.get("train") == first


def test_the_owners_own_registration_is_a_renewal_on_new_terms(world: World) -> None:
    first = world.workflows.register("train", "llama", ttl_s=10, preemptible=True).workflow
    world.clock.advance(8)
    again = world.workflows.register("train", "qwen", ttl_s=20, preemptible=True).workflow
    assert again.token == first.token and again.started_at == first.started_at
    assert (again.recipe, again.preempt_signal_path) == ("qwen", first.preempt_signal_path)
    world.clock.advance(20)
    assert names(world) == ["train"]
    assert world.kinds() == ["workflow.registered"]


def test_registering_is_refused_under_a_live_swap_to_another_recipe_and_allowed_for_the_same(
    world: World,
) -> None:
    other = world.process(2)
    with world.workflows.swap("llama") as swap:
        with raises(EAgain, target="llama", holder_pid=1) as caught:
            other.register("train", "qwen")
        assert caught.value.fields["target"] == "llama" and caught.value.fields["holder_pid"] == 1
        assert caught.value.fields["token"] == swap.token
        assert other.register("serve", "llama").workflow.name == "serve"
    assert other.register("train", "qwen").swap_needed


def test_a_registration_waits_for_the_end_of_a_swap_that_is_in_its_way(world: World) -> None:
    other = world.process(2)
    looked = threading.Event()
    with world.workflows.swap("llama"):
        thread = threading.Thread(target=register_and_set, args=(other, looked))
        thread.start()
        with pytest.raises(EAgain):
            other.register("b", "qwen", wait_s=0.001)
        assert not looked.is_set()
    thread.join(PATIENCE_S)
    assert looked.is_set()


def test_a_registration_that_waits_goes_on_when_the_swapper_dies(world: World) -> None:
    other = world.process(2)
    third = world.process(3)
    swap = other.swap("llama").__enter__()
    done = threading.Event()
    thread = threading.Thread(target=register_and_set, args=(third, done))
    thread.start()
    world.machine.end(2)
    thread.join(PATIENCE_S)
    assert done.is_set()
    lose_lock(swap)


@pytest.mark.parametrize(
    ("name", "recipe", "more", "error"),
    [
        ("../x", "r", {}, InvalidName),
        ("", "r", {}, InvalidName),
        ("a", "", {}, InvalidName),
        ("a", "r\n", {}, InvalidName),
        ("a", "r", {"ttl_s": 0}, InvalidValue),
        ("a", "r", {"ttl_s": float("nan")}, InvalidValue),
        ("a", "r", {"ttl_s": float("inf")}, InvalidValue),
        ("a", "r", {"wait_s": -1}, InvalidValue),
        ("a", "r", {"preempt_signal_path": "/x/y"}, InvalidValue),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_stored(
    world: World, name: str, recipe: str, more: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        world.workflows.register(name, recipe, **more)  # type: ignore[arg-type]
    assert world.entries() == []


# --- sweeping ---


def test_the_dead_and_the_expired_are_swept_with_their_signal_files(world: World) -> None:
    dies, expires = world.process(2), world.process(3)
    dead = dies.register("dead", "llama", preemptible=True).workflow
    late = expires.register("late", "llama", ttl_s=10, preemptible=True).workflow
    for name in ("dead", "late"):
        world.workflows.request_preempt(name)
    assert world.signal_files() == sorted(
        os.path.basename(str(w.preempt_signal_path)) for w in (dead, late)
    )
    world.machine.end(2)
    world.clock.advance(10.000_001)
    world.workflows.register("new", "qwen")
    assert names(world) == ["new"]
    assert world.signal_files() == []
    swept = [entry for entry in world.entries() if entry.kind == "workflow.swept"]
    assert [(entry.subject, entry.data["why"]) for entry in swept] == [
        ("dead", "dead"),
        ("late", "expired"),
    ]


@pytest.mark.parametrize("verb", ["list", "sweep", "swap", "held", "eagain"])
def test_sweeping_happens_whatever_comes_of_the_change(world: World, verb: str) -> None:
    other = world.process(2)
    world.workflows.register("own", "llama")
    other.register("dead", "llama")
    world.machine.end(2)
    if verb == "list":
        assert names(world) == ["own"]
    elif verb == "sweep":
        assert [workflow.name for workflow in world.workflows.sweep()] == ["dead"]
        assert world.workflows.sweep() == []
    elif verb == "swap":
        with world.workflows.swap("llama"):
            pass
    elif verb == "held":
        with pytest.raises(Held):
            world.process(3).register("own", "llama")
    else:
        third = world.process(3)
        third.register("third", "llama")
        with world.workflows.swap("llama"):
            world.machine.end(3)
            with pytest.raises(EAgain):
                world.process(4).register("x", "qwen")
    assert world.kinds().count("workflow.swept") == (2 if verb == "eagain" else 1)
    stored = world.store.read(
        lambda tx: [row.key for row in tx.range(WORKFLOWS)], scope=[WORKFLOWS]
    )
    assert stored == ["own"]


def test_a_pid_that_was_given_to_another_process_is_dead(world: World) -> None:
    other = world.process(2)
    other.register("train", "llama")
    world.machine.end(2)
    successor = world.process(2)
    assert successor.register("train", "qwen").workflow.recipe == "qwen"
    assert "workflow.swept" in world.kinds()


def test_the_lease_decides_about_another_machine(world: World) -> None:
    away = world.process(7, Machine("host-2"))
    away.register("far", "llama", ttl_s=30)
    world.clock.advance(30)
    assert names(world) == ["far"]
    world.clock.advance(0.000_001)
    assert names(world) == []


def test_a_live_owner_past_its_lease_learns_so_at_its_next_renewal(
    world: World,
) -> None:
    token = world.workflows.register("train", "llama", ttl_s=5).workflow.token
    world.clock.advance(6)
    # Nobody has looked yet, so nobody has gone on without it.
    assert world.workflows.renew("train", token).token == token
    world.clock.advance(6)
    assert names(world) == []
    with raises(LeaseLost, workflow="train"):
        world.workflows.renew("train", token)
    assert names(world) == []


def test_the_release_of_what_is_over_but_not_swept_is_a_release(world: World) -> None:
    owner = world.machine.begin(2).current()
    token = world.workflows.register("train", "llama", owner=owner, ttl_s=5).workflow.token
    world.machine.end(2)
    world.clock.advance(6)
    world.workflows.release("train", token)
    assert world.kinds() == ["workflow.registered", "workflow.released"]


def test_a_workflow_that_ends_when_asked_to_yield_has_yielded(world: World) -> None:
    world.process(2).register("train", "llama", preemptible=True)
    world.workflows.request_preempt("train")
    world.machine.end(2)
    world.workflows.sweep()
    assert world.events() == ["preempt_requested", "preempt_yielded"]
    assert world.workflows.swap_log()[-1].data["how"] == "its process ended"


def test_renewing(world: World) -> None:
    token = world.workflows.register("train", "llama", ttl_s=10).workflow.token
    world.clock.advance(9)
    world.workflows.renew("train", token)
    world.clock.advance(9)
    assert names(world) == ["train"]
    renewed = world.workflows.renew("train", token, ttl_s=100)
    world.clock.advance(-50)
    assert world.workflows.renew("train", token).last_renewed_at == renewed.last_renewed_at
    world.clock.advance(150)
    assert names(world) == ["train"]
    with pytest.raises(InvalidValue):
        world.workflows.renew("train", token, ttl_s=-1)


def test_a_stale_token_is_fenced(world: World) -> None:
    stale = world.workflows.register("train", "llama").workflow.token
    world.workflows.release("train", stale)
    with pytest.raises(NotFound):
        world.workflows.release("train", stale)
    fresh = world.process(2).register("train", "llama").workflow.token
    assert fresh > stale
    for call in (
        world.workflows.renew,
        world.workflows.release,
        world.workflows.clear_preempt_signal,
        world.workflows.preempt_requested,
    ):
        with pytest.raises(Fenced) as caught:
            call("train", stale)
        assert caught.value.fields["current"] == fresh
    assert world.workflows.get("train").token == fresh


# --- asking to yield ---


def test_work_is_asked_to_yield_by_a_file_and_yields(world: World) -> None:
    owner = world.process(2)
    workflow = owner.register("train", "llama", preemptible=True).workflow
    assert not owner.preempt_requested("train", workflow.token)
    world.workflows.request_preempt("train")
    assert world.workflows.request_preempt("train").preempt is Preempt.REQUESTED
    assert os.path.exists(str(workflow.preempt_signal_path))
    assert owner.preempt_requested("train", workflow.token)
    owner.clear_preempt_signal("train", workflow.token)
    assert world.signal_files() == []
    assert not owner.preempt_requested("train", workflow.token)
    owner.release("train", workflow.token)
    assert world.events() == ["preempt_requested", "preempt_yielded"]


def test_work_that_is_not_preemptible_is_not_asked(world: World) -> None:
    world.workflows.register("train", "llama")
    with raises(InvalidValue, workflow="train"):
        world.workflows.request_preempt("train")
    with pytest.raises(NotFound):
        world.workflows.request_preempt("other")


def test_a_new_registration_does_not_see_the_signal_of_an_old_one(world: World) -> None:
    owner = world.process(2)
    own_path = str(world.folder / "own-signal")
    old = owner.register("train", "llama", preemptible=True, preempt_signal_path=own_path).workflow
    world.workflows.request_preempt("train")
    assert os.path.exists(own_path)
    # As if the one who swept it had been killed before it could remove the file.
    world.machine.end(2)
    world.store.transact(lambda tx: tx.delete(WORKFLOWS, "train"), scope=[WORKFLOWS])
    fresh = (
        world.process(3)
        .register("train", "llama", preemptible=True, preempt_signal_path=own_path)
        .workflow
    )
    assert fresh.token > old.token and fresh.preempt_signal_path == old.preempt_signal_path
    assert not os.path.exists(own_path)


def test_running_registers_renews_reports_and_releases(world: World) -> None:
    asked = threading.Event()
    with world.process(2).running("train", "llama", preemptible=True, on_preempt=asked.set) as work:
        assert names(world) == ["train"]
        assert not work.should_yield()
        world.workflows.request_preempt("train")
        assert asked.wait(PATIENCE_S)
        assert work.should_yield() and work.preempted.is_set()
    assert names(world) == []
    assert world.events() == ["preempt_requested", "preempt_yielded"]
    assert world.signal_files() == []


def test_a_notice_between_two_renewals_renews_the_work(world: World) -> None:
    """The keeper sleeps a whole interval after a notice: without a renewal there, work went
    unrenewed for half of its time to live.
    """
    with world.process(2).running("train", "llama", preemptible=True, ttl_s=30) as work:
        world.clock.advance(2)
        world.workflows.request_preempt("train")
        until(lambda: world.workflows.get("train").last_renewed_at > work.workflow.last_renewed_at)


def test_running_goes_on_when_memory_ran_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, ran_out = threading.Event(), threading.Event()
    with world.process(2).running("train", "llama", preemptible=True, on_preempt=asked.set) as work:
        with monkeypatch.context() as patched:

            def out_of_memory() -> None:
                ran_out.set()
                raise MemoryError

            patched.setattr(work, "_look", out_of_memory)
            world.workflows.request_preempt("train")
            assert ran_out.wait(PATIENCE_S)
        assert asked.wait(PATIENCE_S)


def test_running_renews_in_time_on_a_store_that_keeps_going_away(world: World) -> None:
    """Each time the store came back, the time until the next renewal started again: live work was
    swept.
    """
    with world.process(2).running("train", "llama", ttl_s=30) as work:
        begun_at = work.workflow.last_renewed_at

        for _ in range(5):
            world.clock.advance(9)
            # What its keeper does each time that the store is back.
            assert work._keep([work._kept]) == []
        assert world.workflows.get("train").last_renewed_at - begun_at >= timedelta(seconds=30)


def swept_behind_its_back(world: World, name: str) -> None:
    def sweep(tx: Tx) -> None:
        tx.delete(WORKFLOWS, name)
        tx.notify(topic_of(name))

    world.store.transact(sweep, scope=[WORKFLOWS])


def test_running_reports_that_it_was_swept(world: World) -> None:
    work = world.process(2).running("train", "llama").__enter__()
    swept_behind_its_back(world, "train")
    assert work.lost.wait(PATIENCE_S)
    with pytest.raises(LeaseLost):
        work.should_yield()
    with raises(LeaseLost, workflow="train"):
        work.__exit__(None, None, None)


def test_running_goes_on_looking_when_what_it_calls_fails(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing renewed the work any more, without a report."""
    asked, lost = threading.Event(), threading.Event()

    def fail(failed: threading.Event) -> None:
        failed.set()
        raise KeyError("no such checkpoint")

    running = world.process(2).running(
        "train",
        "llama",
        preemptible=True,
        on_preempt=lambda: fail(asked),
        on_lost=lambda: fail(lost),
    )
    work = running.__enter__()
    world.workflows.request_preempt("train")
    assert asked.wait(PATIENCE_S)
    swept_behind_its_back(world, "train")
    assert work.lost.wait(PATIENCE_S) and lost.wait(PATIENCE_S)
    with pytest.raises(LeaseLost):
        work.__exit__(None, None, None)
    assert caplog.text.count("the callback of a workflow failed") == 2


def test_running_loses_nothing_when_its_owner_ends_before_it_is_released(world: World) -> None:
    owner = world.machine.begin(2).current()
    with world.workflows.running("train", "llama", owner=owner) as work:
        world.machine.end(2)
        assert [workflow.name for workflow in world.process(3).sweep()] == ["train"]
    assert not work.lost.is_set()


def test_what_the_block_raises_comes_through(world: World) -> None:
    with pytest.raises(KeyError):
        with world.process(2).running("train", "llama"):
            raise KeyError("x")
    assert names(world) == []


def test_the_request_to_yield_moves_only_as_the_table_says() -> None:
    from datetime import UTC, datetime

    from holdfast.kernel.holder import Holder

    at = datetime(2026, 1, 1, tzinfo=UTC)
    owner = Holder(host_id="h", boot_id="b", pid_ns=1, pid=1, start_ticks=1)
    for before, possible in TRANSITIONS.items():
        workflow = Workflow(
            name="w",
            recipe="r",
            owner=owner,
            started_at=at,
            last_renewed_at=at,
            ttl_seconds=1.0,
            token=1,
            preempt=before,
        )
        for after in Preempt:
            if after in possible:
                assert moved(workflow, after).preempt is after
            else:
                with pytest.raises(ImpossibleTransition):
                    moved(workflow, after)


def test_a_damaged_record_hides_no_other_and_is_not_swapped_under(world: World) -> None:
    world.workflows.register("a", "llama")
    world.workflows.register("b", "llama")
    damage(world.real_store, "workflows", "a", b'{"name": "a"')
    damaged: list[Corrupt] = []
    assert [workflow.name for workflow in world.workflows.list_workflows(damaged=damaged)] == ["b"]
    assert [error.fields["key"] for error in damaged] == ["a"]
    with pytest.raises(RecordInvalid):
        world.workflows.list_workflows()
    assert world.workflows.get("b").recipe == "llama"
    assert world.workflows.register("c", "llama").workflow.name == "c"
    with pytest.raises(RecordInvalid, match="holdfast store remove workflows a"):
        world.workflows.swap("llama", timeout_s=0).__enter__()
    assert world.store.get(SWAP_MARKER, ONLY) is None and not world.lock.is_held()


def damage(store: Store, space: str, key: str, data: bytes) -> None:
    """Spoil a record as no program of ours would."""
    if isinstance(store, MemoryStore):
        records = store._state.tables[space].records
        records[key] = records[key]._replace(data=data)
    elif isinstance(store, SqliteStore):
        with closing(sqlite3.connect(store.path)) as connection, connection:
            connection.execute(f"UPDATE s_{space} SET value = ? WHERE key = ?", (data, key))
    elif isinstance(store, FilesStore):
        path = store.root / "workflows.json"
        content = json.loads(path.read_text())
        content[space] = [
            json.loads(data + b"}") if entry["name"] == key else entry for entry in content[space]
        ]
        path.write_text(json.dumps(content))
    else:
        # Here, so that the other stores' tests need no driver.
        from holdfast.stores.postgres.connection import CallDeadline

        store.connections.run(  # type: ignore[attr-defined]
            lambda raw: raw.execute(
                f"UPDATE holdfast.s_{space} SET value = %s WHERE key = %s", (data.decode(), key)
            ),
            CallDeadline.after(PATIENCE_S),
        )


def test_reading_changes_nothing_if_there_is_nothing_to_sweep(world: World) -> None:
    world.workflows.register("train", "llama")
    before = world.entries()
    world.workflows.list_workflows()
    world.workflows.swap_status()
    assert world.workflows.reconcile_swap_marker() == (None, None)
    assert world.workflows.sweep() == []
    assert world.entries() == before
    assert world.store.get(SWAP_MARKER, ONLY) is None
