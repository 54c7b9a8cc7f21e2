"""The queue: accepted in order, one slot, tokens, keys that stand for one request, and bounds."""

import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from holdfast.kernel.errors import (
    Collision,
    Fenced,
    Full,
    ImpossibleTransition,
    InvalidName,
    InvalidValue,
    NotFound,
)
from holdfast.kernel.settings import JournalSettings
from holdfast.kernel.store import Store
from holdfast.primitives.journal import Journal
from holdfast.primitives.queue import Draft, QueueRequest, RequestState
from holdfast.primitives.queue.records import ENDED, KEYS, REQUESTS, TRANSITIONS, Receipt
from holdfast.primitives.queue.transaction import express_topic_of, topic_of
from holdfast.primitives.steady_clock import steady_clock
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.clock import ManualClock
from holdfast.testing.conformance.harness import heard
from tests.harness.queue_steps import SteppedQueue

DAY_S = 86400.0


class Made:
    """A queue on a store with a clock that the test moves."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self.journal = Journal(store, actor="tester", keep=JournalSettings())
        self.queue = SteppedQueue(store, self.journal, "gpu", depth_max=4)

    def accept(
        self, text: str = "hello", *, key: str | None = None, express: bool = False
    ) -> QueueRequest:
        draft = Draft(
            kind="submit_prompt", payload={"prompt": text}, idempotency_key=key, express=express
        )
        (answer,) = self.queue.accept([draft])
        if isinstance(answer, QueueRequest):
            return answer
        raise answer

    def claim(self) -> tuple[QueueRequest, int]:
        request = self.queue.claim()
        assert request is not None and request.token is not None
        return request, request.token

    def logged(self, request_id: str) -> list[str]:
        return [
            e.kind
            for batch in self.journal.since()
            for e in batch.entries
            if e.subject == request_id
        ]


@pytest.fixture(params=["memory", "sqlite"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Made]:
    clock = ManualClock()
    store: Store = (
        MemoryStore(clock=clock)
        if request.param == "memory"
        else SqliteStore(tmp_path / "queue.sqlite", boot_id="boot-1", clock=clock)
    )
    yield Made(store, clock)
    store.close()


def test_requests_begin_in_the_order_they_came_one_at_a_time(made: Made) -> None:
    first, second = made.accept("1"), made.accept("2")
    assert first.arrival < second.arrival
    claimed, token = made.claim()
    assert claimed.request_id == first.request_id
    assert made.queue.claim() is None
    assert made.queue.head().slot == first.request_id
    done = made.queue.complete(first.request_id, token, {"text": "x"})
    assert (done.state, done.token, done.result) == (RequestState.COMPLETED, None, {"text": "x"})
    assert made.claim()[0].request_id == second.request_id


def test_requests_of_one_commit_have_an_order_too(made: Made) -> None:
    drafts = [Draft(kind="submit_prompt", payload={"prompt": str(n)}) for n in range(4)]
    requests = [r for r in made.queue.accept(drafts) if isinstance(r, QueueRequest)]
    assert all(a.arrival < b.arrival for a, b in pairwise(requests))
    begun = []
    for _ in requests:
        claimed, token = made.claim()
        begun.append(claimed.payload["prompt"])
        made.queue.complete(claimed.request_id, token, {})
    assert begun == ["0", "1", "2", "3"]


def test_a_refusal_in_a_shared_commit_is_that_of_one_request_alone(made: Made) -> None:
    drafts = [Draft(kind="submit_prompt", payload={"prompt": str(n)}) for n in range(6)]
    answers = made.queue.accept(drafts)
    assert [isinstance(answer, QueueRequest) for answer in answers] == [True] * 4 + [False] * 2
    assert all(isinstance(answer, Full) for answer in answers[4:])
    assert made.queue.head().depth == 4


def test_a_full_queue_takes_more_when_one_has_ended(made: Made) -> None:
    for n in range(4):
        made.accept(str(n))
    with pytest.raises(Full) as refused:
        made.accept("5")
    assert refused.value.fields == {"queue": "gpu", "depth": 4, "depth_max": 4}
    request, token = made.claim()
    with pytest.raises(Full):
        made.accept("5")
    made.queue.fail(request.request_id, token, code="x", detail="y")
    made.accept("5")


def test_an_idempotency_key_stands_for_one_request(made: Made) -> None:
    first = made.accept("1", key="k")
    assert made.accept("1", key="k") == first
    assert made.accept("1", key="other").request_id != first.request_id
    with pytest.raises(Collision, match=first.request_id):
        made.accept("2", key="k")
    assert made.queue.head().depth == 2
    claimed, token = made.claim()
    made.queue.complete(claimed.request_id, token, {})
    assert made.accept("1", key="k").state is RequestState.COMPLETED


def test_two_drafts_with_one_key_in_one_commit_are_one_request(made: Made) -> None:
    draft = Draft(kind="submit_prompt", payload={"prompt": "1"}, idempotency_key="k")
    one, two = made.queue.accept([draft, draft])
    assert one == two
    assert made.queue.head().depth == 1


def test_a_stale_token_changes_nothing(made: Made) -> None:
    request, token = made.accept(), 0
    with pytest.raises(Fenced):
        made.queue.complete(request.request_id, token, {})
    _, token = made.claim()
    with pytest.raises(Fenced):
        made.queue.fail(request.request_id, token + 1, code="x", detail="y")
    made.queue.complete(request.request_id, token, {})
    with pytest.raises(Fenced, match="completed"):
        made.queue.complete(request.request_id, token, {"text": "late"})
    assert made.queue.get(request.request_id).result == {}


def test_only_a_waiting_request_is_cancelled(made: Made) -> None:
    first, second = made.accept("1"), made.accept("2")
    made.claim()
    ended = made.queue.cancel(second.request_id)
    assert (ended.state, ended.error_code) == (RequestState.FAILED, "cancelled")
    with pytest.raises(ImpossibleTransition, match="interrupt it"):
        made.queue.cancel(first.request_id)
    with pytest.raises(ImpossibleTransition, match="has ended"):
        made.queue.cancel(second.request_id)
    with pytest.raises(NotFound):
        made.queue.cancel("nosuch")
    assert made.queue.head().depth == 1


def test_an_express_request_neither_waits_for_the_slot_nor_takes_it(made: Made) -> None:
    running = made.accept("1")
    made.claim()
    urgent = made.accept("stop", express=True)
    assert urgent.beside == running.request_id
    claimed = made.queue.claim(express=True)
    assert claimed is not None and claimed.request_id == urgent.request_id
    assert made.queue.head().slot == running.request_id
    assert made.queue.claim(express=True) is None


def test_a_request_put_back_keeps_its_place(made: Made) -> None:
    first = made.accept("1")
    made.accept("2")
    _, token = made.claim()
    back = made.queue.change(lambda _, line: line.put_back(first.request_id, token))
    assert (back.state, back.token, back.started_at) == (RequestState.ACCEPTED, None, None)
    again, later = made.claim()
    assert again.request_id == first.request_id
    assert later > token
    assert made.logged(first.request_id) == [
        "request.accepted",
        "request.running",
        "request.readmitted",
        "request.running",
    ]


def test_a_request_meant_for_another_epoch_is_not_begun(made: Made) -> None:
    first, second = made.accept("1"), made.accept("2")
    assert made.queue.claim(epoch=2) is None
    assert [r.request_id for r in made.queue.change(lambda _, line: line.stale(2))] == [
        first.request_id,
        second.request_id,
    ]

    def readmit(request_id: str) -> None:
        made.queue.change(lambda _, line: line.readmit(request_id, epoch=2))

    for request in (second, first):
        readmit(request.request_id)
    claimed = made.queue.claim(epoch=2)
    assert claimed is not None and claimed.request_id == first.request_id


def test_what_ran_is_abandoned_by_how_far_it_got(made: Made) -> None:
    first = made.accept("1")
    _, token = made.claim()
    made.queue.change(lambda _, line: line.deliver(first.request_id, token))
    urgent = made.accept("stop", express=True)
    made.queue.claim(express=True)
    words = {
        Receipt.ACCEPTED: "delivery unknown",
        Receipt.DELIVERED: "delivered",
        Receipt.ANSWERED: "",
    }
    ended = made.queue.change(lambda _, line: line.abandon_running(code="gone", detail=words))
    assert {r.request_id: r.error_detail for r in ended} == {
        first.request_id: "delivered",
        urgent.request_id: "delivery unknown",
    }
    head = made.queue.head()
    assert (head.depth, head.slot) == (0, None)


def test_finished_requests_are_kept_within_bounds_with_their_keys(made: Made) -> None:
    steady_clock(made.queue.store).compare()
    for n in range(6):
        made.accept(str(n), key=f"k{n}")
        request, token = made.claim()
        made.queue.complete(request.request_id, token, {})
        made.clock.advance(10)
    waiting = made.accept("waits", key="w")
    assert made.queue.change(lambda _, line: line.trim(keep=4, keep_s=1000).dropped) == 2
    assert (
        made.queue.change(lambda _, line: line.trim(keep=100, keep_s=25, keep_least=0).dropped) == 2
    )
    assert [r.payload["prompt"] for r in made.queue.list()] == ["4", "5", "waits"]
    assert made.store.read(lambda tx: tx.count(KEYS), scope=[KEYS]) == 3
    assert made.queue.get(waiting.request_id).state is RequestState.ACCEPTED


def test_only_what_has_ended_is_trimmed(made: Made) -> None:
    """A request that runs and one that waits are older than all that ended, and no bound keeps
    them.
    """
    steady_clock(made.queue.store).compare()
    runs = made.accept("runs")
    made.claim()
    waits = made.accept("waits")
    for n in range(2):
        made.accept(str(n), express=True)
        urgent = made.queue.claim(express=True)
        assert urgent is not None and urgent.token is not None
        made.queue.complete(urgent.request_id, urgent.token, {})
    made.clock.advance(1000)
    assert made.queue.change(lambda _, line: line.trim(keep=0, keep_s=1, keep_least=0).dropped) == 2
    assert [r.request_id for r in made.queue.list()] == [runs.request_id, waits.request_id]


def test_a_clock_stepped_forward_takes_no_keys_of_the_last_requests(made: Made) -> None:
    steady_clock(made.queue.store).compare()
    ids = []
    for n in range(5):
        ids.append(made.accept(str(n), key=f"k{n}").request_id)
        request, token = made.claim()
        made.queue.complete(request.request_id, token, {})
    made.clock.advance(400 * 24 * 3600)
    assert made.queue.change(lambda _, line: line.trim().dropped) == 0
    assert made.accept("4", key="k4").request_id == ids[4]
    assert made.queue.change(lambda _, line: line.trim(keep_least=3).dropped) == 2
    assert [r.request_id for r in made.queue.list()] == ids[2:]
    assert made.accept("2", key="k2").request_id == ids[2]


def _done(made: Made, prompt: str) -> str:
    request_id = made.accept(prompt, key=f"k{prompt}").request_id
    request, token = made.claim()
    made.queue.complete(request.request_id, token, {})
    return request_id


def test_pruning_removes_old_finished_requests_with_their_keys(made: Made) -> None:
    old = [_done(made, str(n)) for n in range(3)]
    made.clock.advance(2 * DAY_S)
    young = _done(made, "young")
    runs = made.accept("runs", key="r")
    made.claim()
    made.accept("waits", key="w")
    made.clock.advance(DAY_S - 1)
    assert made.queue.prune(keep_s=4 * DAY_S) == 0
    assert made.queue.prune(keep_s=2 * DAY_S) == 3
    assert [r.payload["prompt"] for r in made.queue.list()] == ["young", "runs", "waits"]
    assert made.logged("gpu") == ["request.pruned"]
    assert made.accept("young", key="kyoung").request_id == young
    assert made.accept("runs", key="r").request_id == runs.request_id
    assert made.accept("0", key="k0").request_id not in old


def test_what_ended_within_a_day_is_never_pruned(made: Made) -> None:
    old = _done(made, "old")
    made.clock.advance(1)
    young = [_done(made, str(n)) for n in range(2)]
    made.clock.advance(DAY_S - 1)
    assert made.queue.prune(keep_finished=0) == 0
    made.clock.advance(0.5)
    assert made.queue.prune(keep_finished=0, keep_s=DAY_S) == 1
    assert [r.request_id for r in made.queue.list()] == young
    assert made.accept("1", key="k1").request_id == young[1]
    assert made.accept("old", key="kold").request_id != old


@pytest.mark.parametrize("keep_s", [0, 3600, DAY_S - 1])
def test_pruning_below_a_day_is_refused_with_the_reason(made: Made, keep_s: float) -> None:
    _done(made, "a")
    made.clock.advance(400 * DAY_S)
    with pytest.raises(InvalidValue) as refused:
        made.queue.prune(keep_finished=0, keep_s=keep_s)
    assert refused.value.fields == {"field": "keep_s", "least": DAY_S}
    assert len(made.queue.list()) == 1


@pytest.mark.parametrize(
    "bounds", [{"keep_finished": -1}, {"keep_s": -1}, {"keep_s": math.inf}, {"keep_s": math.nan}]
)
def test_bounds_that_cannot_be_are_refused(made: Made, bounds: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue) as refused:
        made.queue.prune(**bounds)
    assert "keep" in refused.value.fields


def test_pruning_by_the_bounds_of_the_queue_keeps_its_last_requests(made: Made) -> None:
    for n in range(3):
        _done(made, str(n))
    made.clock.advance(400 * DAY_S)
    assert made.queue.prune() == 0
    assert made.queue.prune(keep_finished=2) == 1
    assert made.queue.prune(keep_s=1e300) == 0
    assert made.queue.prune(keep_s=30 * DAY_S) == 2


def test_pruning_passes_by_what_ended_late_in_whatever_place(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.primitives.queue.transaction.QUEUE_TRIM_MAX", 2)
    late = [made.accept(f"late {n}").request_id for n in range(3)]
    done = [made.accept(str(n), express=True).request_id for n in range(4)]
    for request_id in done:
        made.queue.cancel(request_id)
    made.clock.advance(2 * DAY_S)
    for request_id in late:
        made.queue.cancel(request_id)
    assert made.queue.prune(keep_s=DAY_S) == 4
    assert [r.request_id for r in made.queue.list()] == late


def test_automatic_trimming_is_logged_too(made: Made) -> None:
    _done(made, "a")
    made.queue.change(lambda _, line: line.trim().dropped)
    assert made.logged("gpu") == []
    made.queue.change(lambda _, line: line.trim(keep=0).dropped)
    assert made.logged("gpu") == ["request.pruned"]


def test_lists_are_in_order_and_cut_to_the_newest(made: Made) -> None:
    ids = [made.accept(str(n)).request_id for n in range(3)]
    made.claim()
    assert [r.request_id for r in made.queue.list()] == ids
    assert [r.request_id for r in made.queue.list(limit=2)] == ids[1:]
    assert [r.request_id for r in made.queue.list(state=RequestState.ACCEPTED)] == ids[1:]
    assert [r.request_id for r in made.queue.list(state=RequestState.RUNNING)] == ids[:1]


def test_queues_on_one_store_do_not_meet(made: Made) -> None:
    other = SteppedQueue(made.store, made.journal, "cpu")
    request = made.accept("1", key="k")
    assert other.claim() is None
    assert other.list() == []
    with pytest.raises(NotFound):
        other.get(request.request_id)
    (theirs,) = other.accept(
        [Draft(kind="submit_prompt", payload={"prompt": "2"}, idempotency_key="k")]
    )
    assert isinstance(theirs, QueueRequest) and theirs.request_id != request.request_id


def test_waiting_ends_with_the_request_or_the_time(made: Made) -> None:
    import threading

    request = made.accept()
    assert made.queue.wait(request.request_id, 0).state is RequestState.ACCEPTED
    _, token = made.claim()
    finisher = threading.Thread(target=made.queue.complete, args=(request.request_id, token, {}))
    finisher.start()
    assert made.queue.wait(request.request_id, 30).state is RequestState.COMPLETED
    finisher.join()


@pytest.mark.parametrize("key", ["", "a\nb", "x" * 257, "\ud800"])
def test_what_cannot_be_a_key_is_refused_before_anything_is_stored(made: Made, key: str) -> None:
    with pytest.raises(InvalidName):
        made.accept(key=key)
    assert made.queue.head().depth == 0


def test_a_queue_that_could_take_nothing_is_refused(made: Made) -> None:
    with pytest.raises(InvalidValue):
        SteppedQueue(made.store, made.journal, "gpu", depth_max=0)


def test_a_damaged_request_is_skipped_and_reported(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "queue.sqlite"
    made = Made(SqliteStore(path, boot_id="boot-1"), ManualClock())
    first, second = made.accept("1"), made.accept("2")
    with sqlite3.connect(path) as raw:
        raw.execute(
            f"UPDATE s_{REQUESTS.name} SET value = ? WHERE key = ?",
            (b"{", f"gpu/{first.request_id}"),
        )
    raw.close()

    def claim(_: object, line: object) -> tuple[object, int]:
        return line.claim(epoch=1), len(line.damaged)  # type: ignore[attr-defined]

    claimed, damaged = made.queue.change(claim)
    assert isinstance(claimed, QueueRequest) and claimed.request_id == second.request_id
    assert damaged == 1
    made.store.close()


def test_a_damaged_request_does_not_keep_the_slot_for_ever(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "queue.sqlite"
    made = Made(SqliteStore(path, boot_id="boot-1"), ManualClock())
    first, second = made.accept("1"), made.accept("2")
    assert made.queue.claim() is not None
    with sqlite3.connect(path) as raw:
        raw.execute(
            f"UPDATE s_{REQUESTS.name} SET value = ? WHERE key = ?",
            (b"{", f"gpu/{first.request_id}"),
        )
    raw.close()
    assert made.queue.claim() is None
    said = dict.fromkeys(Receipt, "gone")
    assert made.queue.change(lambda _, line: line.abandon_running(code="gone", detail=said)) == []
    claimed = made.queue.claim()
    assert claimed is not None and claimed.request_id == second.request_id
    assert made.queue.head().running == 1
    made.store.close()


def test_every_change_wakes_those_that_wait_for_the_queue(made: Made) -> None:
    """Not by the look that a sleeper takes now and then anyway: by a notice."""
    with made.store.listen([topic_of("gpu")]) as ears:
        made.accept("1")
        assert heard(ears)
        request, token = made.claim()
        assert heard(ears)
        made.queue.complete(request.request_id, token, {})
        assert heard(ears)


def test_only_an_express_change_wakes_those_that_wait_for_express_requests(made: Made) -> None:
    with made.store.listen([express_topic_of("gpu")]) as ears:
        made.accept("1")
        assert not ears.wait(0).notified
        made.accept("2", express=True)
        assert heard(ears)


def test_what_is_meant_for_this_epoch_is_not_stale(made: Made) -> None:
    drafts = [Draft(kind="k", payload={})]
    for epoch in (1, 2, 3):
        made.queue.accept(drafts, epoch=epoch)
    stale = made.queue.change(lambda _, line: [request.epoch for request in line.stale(2)])
    assert stale == [1]


def test_what_has_ended_becomes_nothing_else() -> None:
    assert [TRANSITIONS[state] for state in ENDED] == [frozenset(), frozenset()]
