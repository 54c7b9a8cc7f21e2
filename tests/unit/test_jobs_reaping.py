"""Jobs whose workers die, stop telling or take too long; verdicts and the next pick in one step. On
every store, on a clock of the test's.
"""

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.domains.jobs import Job, Jobs, JobStatus, picker, reaper, registry, transitions
from holdfast.domains.jobs.records import JOBS
from holdfast.kernel import token as tokens
from holdfast.kernel.errors import Fenced, ImpossibleTransition, InvalidValue, StoreUnavailable
from holdfast.kernel.holder import Holder, ProcessStat
from holdfast.kernel.settings import JobSettings
from holdfast.kernel.space import Space, rows
from holdfast.kernel.store import Tx
from holdfast.stores import listener
from tests.harness.errors import raises
from tests.harness.machine import Machine
from tests.harness.timeouts import NEVER_S, PATIENCE_S
from tests.unit.job_world import LABEL, STORES, World, world_on


def note_decoded(monkeypatch: pytest.MonkeyPatch, keys: list[str]) -> None:
    """Note the key of each job that is decoded from here on."""
    decode = JOBS.decode

    def noting(key: str, data: bytes) -> Job:
        keys.append(key)
        return decode(key, data)

    monkeypatch.setattr(JOBS, "decode", noting)


@pytest.fixture(params=STORES)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with world_on(request.param, tmp_path, request) as made:
        yield made


def test_a_dead_workers_job_is_pending_at_the_next_pick_and_its_token_refused(world: World) -> None:
    world.register()
    first = world.pick(world.worker(7))
    assert world.jobs.pick_pending(LABEL) is None
    world.machine.end(7)
    second = world.pick(world.worker(8))
    assert (second.job_id, second.attempt) == (first.job_id, 2)
    with raises(Fenced, late_result=1):
        world.jobs.update_status(first.job_id, JobStatus.COMPLETED, token=first.token)
    with pytest.raises(Fenced):
        world.jobs.heartbeat(first.job_id, token=first.token or 0)
    assert world.logged()[1] == {
        "from": "running",
        "to": "pending",
        "attempt": 1,
        "token": None,
        "why": "worker_died",
    }
    assert (
        world.jobs.update_status(first.job_id, JobStatus.COMPLETED, token=second.token).status
        is JobStatus.COMPLETED
    )


def test_a_reused_pid_is_another_worker(world: World) -> None:
    world.register()
    first = world.pick(world.worker(7))
    world.machine.end(7)
    world.worker(7)
    assert world.pick().job_id == first.job_id


def test_after_its_last_attempt_a_dead_workers_job_ends_in_error(world: World) -> None:
    job = world.register(max_attempts=2)
    for pid in (7, 8):
        world.pick(world.worker(pid))
        world.machine.end(pid)
    assert world.jobs.pick_pending(LABEL) is None
    ended = world.jobs.get_job(job.job_id)
    assert (ended.status, ended.error_code, ended.attempt) == (JobStatus.ERROR, "worker_died", 2)
    assert ended.error is not None
    assert "2 attempts" in ended.error


def test_only_deaths_count_towards_the_attempts_a_job_may_have(world: World) -> None:
    job = world.register(max_attempts=1)
    for _ in range(3):
        picked = world.pick(world.worker(7))
        world.jobs.requeue(job.job_id, token=picked.token)
    last = world.pick(world.worker(8))
    assert (last.attempt, last.deaths) == (4, 0)
    world.machine.end(8)
    [ended] = world.jobs.reap()
    assert (ended.status, ended.error_code, ended.attempt, ended.deaths) == (
        JobStatus.ERROR,
        "worker_died",
        4,
        1,
    )
    assert ended.error == "its worker died: 1 attempt ended so, and no more than 1 may"


def test_more_running_jobs_than_one_look_reads_are_all_looked_at(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper, "JOBS_SWEPT_MAX", 3)
    # Those that end first are alive, and more of one moment than a look reads; the dead one comes
    # last.
    jobs = [world.register(timeout_sec=50.0) for _ in range(8)] + [
        world.register(timeout_sec=5000.0, idle_timeout_sec=4000.0)
    ]
    alive, dead = world.worker(7), world.worker(8)
    for _ in jobs[:-1]:
        world.pick(alive)
    world.pick(dead)
    world.machine.end(8)
    assert [(job.job_id, job.status) for job in world.jobs.reap()] == [
        (jobs[-1].job_id, JobStatus.PENDING)
    ]
    world.clock.advance(60)
    assert {job.job_id for job in world.jobs.reap()} == {job.job_id for job in jobs[:-1]}


@pytest.mark.slow
def test_a_check_reads_what_is_due_and_little_else(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = world.register(timeout_sec=5.0)
    world.pick()
    dead = [world.register() for _ in range(3)]
    dying = world.worker(8)
    for _ in dead:
        world.pick(dying)
    busy, elsewhere = world.worker(7), world.worker(7, Machine("host-2"))
    for holder in [busy] * 100 + [elsewhere] * 100 + [None] * 100:
        world.register()
        world.pick(holder)
    world.machine.end(8)
    world.clock.advance(6)
    read: list[str] = []
    note_decoded(monkeypatch, read)
    monkeypatch.setattr(reaper, "JOBS_OF_WORKERS_READ", 10)
    assert {job.job_id for job in world.jobs.abandoned()} == {
        late.job_id,
        *(job.job_id for job in dead),
    }
    # A page of the live worker's jobs, and the one that ends with the dead one's.
    assert len(read) <= 10 + 10 + 1
    read.clear()
    assert {job.job_id for job in world.jobs.reap()} == {late.job_id, *(job.job_id for job in dead)}
    assert len(read) <= 10 + 10 + 1 + 4


def test_a_dead_worker_of_more_jobs_than_one_look_reads_loses_all(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper, "JOBS_OF_WORKERS_READ", 3)
    dead, alive = world.worker(7), world.worker(8)
    lost = {world.register().job_id for _ in range(11)}
    for _ in lost:
        world.pick(dead)
    kept = [world.register() for _ in range(7)]
    for _ in kept:
        world.pick(alive)
    world.machine.end(7)
    assert {job.job_id for job in world.jobs.abandoned()} == lost
    transact = world.store.transact
    steps: list[object] = []

    def count(*given: Any, **more: Any) -> Any:
        steps.append(given)
        return transact(*given, **more)

    monkeypatch.setattr(world.store, "transact", count)
    assert {job.job_id for job in world.jobs.reap()} == lost
    # In one step: between two, other workers would pick them out of order.
    assert len(steps) == 1
    assert world.jobs.abandoned() == []


def test_a_job_claimed_just_before_a_death_comes_back_with_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep had read the worker's jobs before its last claim, and found it dead after that: the
    last job stayed claimed for a second while those behind it were picked.
    """
    dying = world.worker(7)
    jobs = {world.register().job_id for _ in range(2)}
    world.pick(dying)
    process_stat = world.machine.process_stat
    claimed: list[Job] = []

    def claim_and_die(pid: int) -> ProcessStat | None:
        if pid == 7 and not claimed:
            claimed.append(world.pick(dying))
            world.machine.end(7)
        return process_stat(pid)

    monkeypatch.setattr(world.machine, "process_stat", claim_and_die)
    assert {job.job_id for job in world.jobs.reap()} == jobs


def as_before(patch: pytest.MonkeyPatch, world: World) -> None:
    """From here on the registry is that of a program from before jobs were found by their
    workers.
    """
    indexes = {name: of for name, of in JOBS.indexes.items() if name != "worker"}
    before = Space("jobs", Job, indexes=indexes, layout=JOBS.layout)
    for module in (registry, transitions, picker):
        patch.setattr(module, "JOBS", before)
    for module in (registry, picker):
        patch.setattr(module, "JOBS_ALONE", [rows(before)])
    patch.setattr(world.jobs._reaper, "sweep_if_due", lambda: True)
    # At one job in a thousand it would look by that.
    patch.setattr(registry, "JOBS_PRUNE_EVERY", 1 << 62)


def test_a_store_from_before_jobs_were_found_by_their_workers(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    if world.store.kind == "memory":
        pytest.skip("nothing in memory is from before")
    lost, done = "lost", "done"
    with monkeypatch.context() as patch:
        as_before(patch, world)
        holder = world.worker(7)
        for job_id in (lost, done):
            world.register(job_id=job_id)
            running = world.pick(holder)
    assert world.jobs.abandoned() == []
    with monkeypatch.context() as patch:
        # One that was started before still runs, and leaves the new index as it was.
        as_before(patch, world)
        world.jobs.update_status(done, "completed", token=running.token)
    world.machine.end(7)
    assert [job.job_id for job in world.jobs.reap()] == [lost]
    assert world.jobs.get_job(done).status is JobStatus.COMPLETED


@pytest.mark.usefixtures("no_second_look")
def test_a_worker_that_dies_before_it_is_watched_wakes_a_waiting_pick(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.register()
    world.pick(world.worker(7))
    pick = world.jobs._picker.pick

    def dying(*arguments: Any) -> Job | None:
        picked = pick(*arguments)
        if picked is None:
            world.machine.end(7)
        return picked

    monkeypatch.setattr(world.jobs._picker, "pick", dying)
    found = world.jobs.pick_pending(LABEL, wait_s=NEVER_S)
    assert found is not None and found.job_id == job.job_id


def test_a_claim_without_a_process_lives_until_its_time_limit(world: World) -> None:
    job = world.register(timeout_sec=100, idle_timeout_sec=1000)
    world.pick()
    world.clock.advance(100)
    assert world.jobs.reap() == []
    assert world.jobs.get_job(job.job_id).status is JobStatus.RUNNING
    world.clock.advance(0.001)
    [ended] = world.jobs.reap()
    assert (ended.status, ended.error_code) == (JobStatus.ERROR, "timed_out")
    assert ended.finished_at == world.clock.now()
    assert world.jobs.get_job(job.job_id) == ended
    assert world.jobs.reap() == []


@pytest.mark.parametrize("look", ["get", "list", "pick", "finish"])
def test_any_reader_reaps(world: World, look: str) -> None:
    job = world.register(timeout_sec=10)
    world.pick()
    other = world.register()
    if look == "finish":
        running = world.pick()
        # A busy worker checks now and then.
        world.jobs._reaper._next_s = 0
    world.clock.advance(11)
    if look == "get":
        assert world.jobs.get_job(job.job_id).error_code == "timed_out"
    elif look == "list":
        assert [found.status for found in world.jobs.list_jobs()] == [
            JobStatus.ERROR,
            JobStatus.PENDING,
        ]
    elif look == "pick":
        world.jobs._reaper._next_s = 0
        assert world.pick().job_id == other.job_id
    else:
        world.jobs.finish_and_pick(running.job_id, "completed", token=running.token or 0)
    assert {
        "from": "running",
        "to": "error",
        "attempt": 1,
        "token": None,
        "why": "timed_out",
    } in world.logged()


def test_signs_of_life_put_off_the_idle_limit_but_not_the_time_limit(world: World) -> None:
    job = world.register(timeout_sec=100, idle_timeout_sec=10)
    token = world.pick().token or 0
    for _ in range(10):
        world.clock.advance(9.9)
        assert world.jobs.reap() == []
        world.jobs.heartbeat(job.job_id, token=token)
    world.clock.advance(2)
    [ended] = world.jobs.reap()
    assert "within 100 s" in (ended.error or "")


def test_without_a_sign_it_is_idle(world: World) -> None:
    world.register(timeout_sec=100, idle_timeout_sec=10)
    world.pick(world.worker(7))
    world.clock.advance(10.1)
    [ended] = world.jobs.reap()
    assert (ended.error_code, ended.error) == ("timed_out", "no sign of it came for 10 s")


def test_waiting_for_permission_burns_no_idle_time(world: World) -> None:
    job = world.register(timeout_sec=1000, idle_timeout_sec=10)
    token = world.pick().token
    world.events.publish(job.job_id, "permission_required", detail="may I?", token=token)
    world.clock.advance(500)
    assert world.jobs.reap() == []
    world.events.publish(job.job_id, "progress", token=token)
    world.clock.advance(9)
    assert world.jobs.reap() == []
    world.clock.advance(2)
    assert [ended.error_code for ended in world.jobs.reap()] == ["timed_out"]


def test_another_boot_proves_death_where_only_this_machine_can_be_meant(world: World) -> None:
    world.register()
    holder = world.worker(7)
    world.pick(
        Holder(
            **{name: getattr(holder, name) for name in holder.__struct_fields__}
            | {"boot_id": "boot-0"}
        )
    )
    reaped = world.jobs.reap()
    assert [job.status for job in reaped] == ([JobStatus.PENDING] if world.store.embedded else [])


def test_finishing_and_picking_are_one_step(world: World) -> None:
    for number in range(3):
        world.register(str(number))
    job = world.pick()
    before = len(world.logged())
    done, picked = world.jobs.finish_and_pick(
        job.job_id, "completed", token=job.token or 0, result="fine"
    )
    assert (done.status, done.result, done.token) == (JobStatus.COMPLETED, "fine", None)
    assert picked is not None
    assert (picked.prompt, picked.status, picked.attempt) == ("1", JobStatus.RUNNING, 1)
    assert (picked.token or 0) > (job.token or 0)
    assert [(logged["from"], logged["to"]) for logged in world.logged()[before:]] == [
        ("running", "completed"),
        ("pending", "running"),
    ]
    last = world.jobs.finish_and_pick(
        picked.job_id, "error", token=picked.token or 0, error="no"
    ).picked
    assert last is not None
    assert world.jobs.finish_and_pick(last.job_id, "cancelled", token=last.token or 0) == (
        world.jobs.get_job(last.job_id),
        None,
    )


def test_a_refused_finish_picks_nothing(world: World) -> None:
    world.register("1")
    waiting = world.register("2")
    job = world.pick()
    with pytest.raises(Fenced):
        world.jobs.finish_and_pick(job.job_id, "completed", token=(job.token or 0) + 1)
    with pytest.raises(InvalidValue, match="does not end a job"):
        world.jobs.finish_and_pick(job.job_id, "pending", token=job.token or 0)
    assert world.jobs.get_job(waiting.job_id) == waiting
    assert world.jobs.get_job(job.job_id) == job


def test_cancel_and_requeue_fence_the_worker(world: World) -> None:
    world.register("1")
    job = world.pick()
    assert world.jobs.requeue(job.job_id).status is JobStatus.PENDING
    again = world.pick()
    ended = world.jobs.cancel(job.job_id, reason="not needed")
    assert (ended.status, ended.error) == (JobStatus.CANCELLED, "not needed")
    for token in (job.token, again.token):
        with pytest.raises(Fenced):
            world.jobs.update_status(job.job_id, "completed", token=token)
    with pytest.raises(ImpossibleTransition):
        world.jobs.requeue(job.job_id)


def test_numbers_of_events_start_at_1_and_are_never_given_twice(world: World) -> None:
    job = world.register()
    assert [world.jobs.next_seq(job.job_id) for _ in range(3)] == [1, 2, 3]
    assert world.events.publish(job.job_id, "progress").event.seq == 4
    assert world.jobs.get_job(job.job_id).last_seq == 4


@pytest.mark.usefixtures("no_second_look")
def test_a_waiting_pick_gets_a_job_the_moment_its_worker_dies(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asleep = threading.Event()
    wait = listener.FdListener.wait

    def noted(ears: listener.FdListener, timeout_s: float | None, **more: Any) -> Any:
        asleep.set()
        return wait(ears, timeout_s, **more)

    monkeypatch.setattr(listener.FdListener, "wait", noted)
    job = world.register()
    world.pick(world.worker(7))
    got: list[Job | None] = []
    waiter = threading.Thread(
        target=lambda: got.append(world.jobs.pick_pending(LABEL, wait_s=NEVER_S)), daemon=True
    )
    waiter.start()
    assert asleep.wait(PATIENCE_S)
    world.machine.end(7)
    waiter.join(PATIENCE_S)
    assert [found and found.job_id for found in got] == [job.job_id]


def test_lists_are_read_in_pages_and_no_further_than_needed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.domains.jobs import queries

    monkeypatch.setattr(queries, "JOBS_PAGE", 4)
    ids = [
        world.jobs.register_job(str(n), agent="a", agent_session=f"tmux:{n % 3}").job_id
        for n in range(23)
    ]
    for job_id in ids[5:15]:
        world.jobs.update_status(job_id, "running")
    decoded: list[str] = []
    note_decoded(monkeypatch, decoded)
    assert [job.job_id for job in world.jobs.list_jobs()] == ids
    decoded.clear()
    assert [job.job_id for job in world.jobs.list_jobs(limit=6)] == ids[-6:]
    # The running ones twice, of which there are always few; a pending one of each label to know it,
    # and a page of each.
    assert len(decoded) <= 2 * 10 + 3 + 3 * 4
    assert [job.job_id for job in world.jobs.list_jobs(status="running", limit=5)] == ids[10:15]
    assert [job.job_id for job in world.jobs.list_jobs(agent_session="tmux:1")] == ids[1::3]
    assert [
        job.job_id
        for job in world.jobs.list_jobs(agent_session="tmux:1", status="pending", limit=3)
    ] == ids[16::3]


def test_jobs_of_another_program_are_pruned_only_on_request_and_listed_first(
    world: World,
) -> None:
    def put(tx: Tx) -> None:
        for number in range(5):
            at = tx.now - timedelta(days=365)
            arrival = tokens.first(1000 + number)
            status = JobStatus.ERROR if number % 2 else JobStatus.COMPLETED
            facts: dict[str, Any] = {
                "agent": "a",
                "agent_session": LABEL,
                "created_at": at,
                "updated_at": at,
                "prompt": "x",
            }
            tx.put(
                JOBS,
                f"theirs-{number}",
                Job(job_id=f"theirs-{number}", status=status, arrival=arrival, **facts),
            )

    world.store.transact(put, scope=[JOBS])
    ours = [world.register(str(number)) for number in range(4)]
    for _ in ours:
        world.jobs.update_status(world.pick().job_id, "completed")
    theirs = [f"theirs-{number}" for number in range(5)]
    # They take no place of those that are kept, and keep no other from being removed.
    assert world.jobs.prune(keep_finished=3) == 1
    assert [job.job_id for job in world.jobs.list_jobs()] == [
        *theirs,
        *(job.job_id for job in ours[1:]),
    ]
    assert world.jobs.prune(keep_finished=3, adopted=True) == 5
    assert [job.job_id for job in world.jobs.list_jobs()] == [job.job_id for job in ours[1:]]
    logged = {
        entry.subject: entry.data
        for entry in world.journal.tail(100)[0]
        if entry.kind == "job.removed"
    }
    assert sorted(logged) == theirs
    assert logged["theirs-1"]["status"] == "error"


def test_finished_jobs_are_pruned_by_age_and_number(world: World) -> None:
    for number in range(6):
        world.register(str(number))
        job = world.pick()
        world.events.publish(job.job_id, "progress", token=job.token)
        world.jobs.update_status(job.job_id, "completed", token=job.token)
        world.clock.advance(10)
    kept = world.register("pending")
    assert world.jobs.prune() == 0
    assert world.jobs.prune(keep_s=35) == 3
    assert world.jobs.prune(keep_finished=1) == 2
    assert [job.prompt for job in world.jobs.list_jobs()] == ["5", "pending"]
    assert world.jobs.prune(keep_finished=0) == 1
    assert world.jobs.list_jobs() == [kept]
    assert world.events.unsent() == []
    with pytest.raises(InvalidValue):
        world.jobs.prune(keep_finished=-1)


def test_a_registration_prunes_only_some(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its registrant waits meanwhile, and after a lower bound there may be a million."""
    for _ in range(12):
        job = world.register()
        world.jobs.cancel(job.job_id)
    jobs = Jobs(world.store, world.journal, world.machine.begin(1), JobSettings(keep_finished=1))
    monkeypatch.setattr("holdfast.domains.jobs.registry.JOBS_PRUNE_EVERY", 1)
    monkeypatch.setattr("holdfast.domains.jobs.retention.JOBS_PRUNED_MAX", 3)
    jobs.register_job("p", agent="claude", agent_session="s")
    assert len(jobs.list_jobs(status="cancelled")) == 9
    assert jobs.prune() == 8


def test_a_new_job_under_the_id_of_one_that_is_just_pruned_stays(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two prune at once, and in between somebody registers under the id again: the second took the
    new job out, pending.
    """
    for job_id in ("again", "old"):
        world.jobs.register_job("x", agent="a", agent_session=LABEL, job_id=job_id)
        world.jobs.update_status(world.pick().job_id, "completed")
    transact = world.store.transact

    def late(*given: Any, **more: Any) -> Any:
        monkeypatch.undo()
        assert world.jobs.prune(keep_finished=1) == 1
        world.jobs.register_job("new", agent="a", agent_session=LABEL, job_id="again")
        return transact(*given, **more)

    monkeypatch.setattr(world.store, "transact", late)
    assert world.jobs.prune(keep_finished=0) == 1
    assert [(job.job_id, job.prompt) for job in world.jobs.list_jobs()] == [("again", "new")]


def test_a_job_of_the_lowest_priority_does_not_break_a_list(world: World) -> None:
    # Another program may have registered it: ours refuses such a priority.
    lowest = replace(world.register(), priority=1 - 2**63)
    world.store.transact(lambda tx: tx.put(JOBS, lowest.job_id, lowest), scope=[rows(JOBS)])
    ids = [lowest.job_id]
    ids += [world.register(str(number)).job_id for number in range(3)]
    assert [job.job_id for job in world.jobs.list_jobs()] == ids
    assert [job.job_id for job in world.jobs.list_jobs(agent_session=LABEL, limit=2)] == ids[-2:]
    assert world.pick().job_id == ids[1]


class Unsure:
    """A commit that is not answered: done all the same, or not."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch, *, done: bool) -> None:
        self._world = world
        self._monkeypatch = monkeypatch
        self._done = done
        self._transact = world.store.transact

    def __enter__(self) -> None:
        self._monkeypatch.setattr(self._world.store, "transact", self._unanswered)

    def __exit__(self, *_: object) -> None:
        self._monkeypatch.undo()

    def _unanswered(self, body: Any, **more: Any) -> Any:
        class Undone(Exception):
            pass

        def undone(tx: Tx) -> None:
            body(tx)
            raise Undone

        if self._done:
            self._transact(body, **more)
        else:
            with pytest.raises(Undone):
                self._transact(undone, **more)
        raise StoreUnavailable("lost at its commit", outcome="unknown")


def test_what_a_live_worker_was_given_without_an_answer_is_put_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody worked on it, and it ended in error when its time was over: after an outage, one for
    each worker.
    """
    worker = world.worker(7)
    ids = [world.register(str(number)).job_id for number in range(3)]
    world.jobs.reap()
    with Unsure(world, monkeypatch, done=True), pytest.raises(StoreUnavailable):
        world.jobs.pick_pending(LABEL, holder=worker)
    assert world.jobs.get_job(ids[0]).claimed_by == worker
    first = world.pick(worker)
    assert (first.job_id, first.attempt, first.deaths) == (ids[0], 2, 0)
    with Unsure(world, monkeypatch, done=True), pytest.raises(StoreUnavailable):
        world.jobs.finish_and_pick(first.job_id, "completed", token=first.token or 0, holder=worker)
    with pytest.raises(Fenced):
        world.jobs.finish_and_pick(first.job_id, "completed", token=first.token or 0, holder=worker)
    assert world.jobs.get_job(ids[1]).status is JobStatus.PENDING
    assert [change["why"] for change in world.logged() if "why" in change] == ["unanswered"] * 2
    assert world.pick(worker).job_id == ids[1]


def test_a_claim_that_came_to_nothing_takes_no_other_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its token was not given, and the next one to claim the job may have got it."""
    world.register()
    world.jobs.reap()
    with Unsure(world, monkeypatch, done=False), pytest.raises(StoreUnavailable):
        world.jobs.pick_pending(LABEL, holder=world.worker(7))
    theirs = world.registry(2).pick_pending(LABEL, holder=world.worker(8))
    assert theirs is not None
    assert world.jobs.pick_pending(LABEL) is None
    assert world.jobs.get_job(theirs.job_id) == theirs
