"""Random sequences of everything that can happen to a queue, each answer compared with a plain
list.

The oracle keeps requests in a list in the order they came, and knows by itself which may begin,
which tokens count and what a key stands for. After every step the stored requests, the counts and
the slot must be those of the oracle.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.kernel.errors import Collision, Fenced, Full, ImpossibleTransition
from holdfast.kernel.store import Store
from holdfast.primitives.journal import Journal
from holdfast.primitives.queue import Draft, QueueRequest, RequestState
from holdfast.primitives.queue.records import Receipt
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from tests.harness.queue_steps import SteppedQueue
from tests.model.search import search

pytestmark = pytest.mark.prove

DEPTH = 5
KEYS = [None, None, "k1", "k2"]
TEXTS = ["a", "b"]
WORDS = {receipt: receipt.value for receipt in Receipt}

World = Callable[[], Callable[[], Store]]
"""Makes a new world: what opens its store, again and again."""


@dataclass
class Known:
    """What the oracle knows of a request."""

    text: str
    key: str | None
    express: bool
    epoch: int
    state: str = "accepted"
    token: int | None = None
    request_id: str = ""
    receipt: str = "accepted"
    code: str | None = None


class QueueMachine(RuleBasedStateMachine):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._open = world()

    @initialize()
    def begin(self) -> None:
        self.known: list[Known] = []
        self.tokens: list[int] = [0]
        self.epoch = 1
        self._connect()

    def _connect(self) -> None:
        self.store = self._open()
        self.queue = SteppedQueue(
            self.store, Journal(self.store, actor="model"), "gpu", depth_max=DEPTH
        )

    def _depth(self, express: bool) -> int:
        """What counts against the bound: all that have not ended, or of the express ones those that
        wait.
        """
        if express:
            return sum(one.state == "accepted" and one.express for one in self.known)
        return sum(one.state in ("accepted", "running") for one in self.known)

    def _pick(self, number: int) -> Known | None:
        return self.known[number % len(self.known)] if self.known else None

    @rule(
        drafts=st.lists(
            st.tuples(st.sampled_from(TEXTS), st.sampled_from(KEYS), st.booleans()),
            min_size=1,
            max_size=4,
        ),
    )
    def accept(self, drafts: list[tuple[str, str | None, bool]]) -> None:
        answers = self.queue.accept(
            [
                Draft(kind="k", payload={"text": t}, idempotency_key=k, express=e)
                for t, k, e in drafts
            ],
            epoch=self.epoch,
        )
        for (text, key, express), answer in zip(drafts, answers, strict=True):
            same = next((one for one in self.known if key is not None and one.key == key), None)
            if same is not None and same.text == text:
                assert isinstance(answer, QueueRequest) and answer.request_id == same.request_id
            elif same is not None:
                assert isinstance(answer, Collision)
            elif self._depth(express) >= DEPTH:
                assert isinstance(answer, Full)
            else:
                assert isinstance(answer, QueueRequest)
                self.known.append(
                    Known(text, key, express, self.epoch, request_id=answer.request_id)
                )

    @rule(express=st.booleans())
    def claim(self, express: bool) -> None:
        claimed = self.queue.claim(epoch=self.epoch, express=express)
        taken = not express and any(
            one.state == "running" and not one.express for one in self.known
        )
        ready = [
            k
            for k in self.known
            if k.state == "accepted" and k.express == express and k.epoch == self.epoch
        ]
        if taken or not ready:
            assert claimed is None
            return
        assert claimed is not None and claimed.request_id == ready[0].request_id
        assert claimed.token is not None and claimed.token > max(self.tokens)
        self.tokens.append(claimed.token)
        ready[0].state, ready[0].token = "running", claimed.token

    @rule(
        number=st.integers(0, 50),
        how=st.sampled_from(["complete", "fail", "deliver", "put_back"]),
        stale=st.booleans(),
    )
    def report(self, number: int, how: str, stale: bool) -> None:
        one = self._pick(number)
        if one is None:
            return
        token = self.tokens[number % len(self.tokens)] if stale or one.token is None else one.token
        if one.token != token:
            with pytest.raises(Fenced):
                self._report(one, how, token)
            return
        self._report(one, how, token)
        if how == "deliver":
            one.receipt = "delivered"
            return
        one.token = None
        one.state = {"complete": "completed", "fail": "failed", "put_back": "accepted"}[how]
        if how == "complete":
            one.receipt = "answered"
        one.code = "why" if how == "fail" else None

    def _report(self, one: Known, how: str, token: int) -> None:
        if how == "complete":
            self.queue.complete(one.request_id, token, {"text": "x"})
        elif how == "fail":
            self.queue.fail(one.request_id, token, code="why", detail="because")
        elif how == "deliver":
            self.queue.change(lambda _, line: line.deliver(one.request_id, token))
        else:
            self.queue.change(lambda _, line: line.put_back(one.request_id, token))

    @rule(number=st.integers(0, 50))
    def cancel(self, number: int) -> None:
        one = self._pick(number)
        if one is None:
            return
        if one.state != "accepted":
            with pytest.raises(ImpossibleTransition):
                self.queue.cancel(one.request_id)
            return
        self.queue.cancel(one.request_id)
        one.state, one.code = "failed", "cancelled"

    def readmit(self, request_id: str) -> None:
        self.queue.change(lambda _, line: line.readmit(request_id, epoch=self.epoch))

    @rule(replay=st.booleans())
    def another_epoch(self, replay: bool) -> None:
        self.epoch += 1
        stale = self.queue.change(lambda _, line: line.stale(self.epoch))
        waiting = [one for one in self.known if one.state == "accepted" and one.epoch < self.epoch]
        assert [r.request_id for r in stale] == [one.request_id for one in waiting]
        if replay:
            for one in reversed(waiting):
                self.readmit(one.request_id)
                one.epoch = self.epoch

    @rule()
    def restart(self) -> None:
        if not isinstance(self.store, MemoryStore):
            self.store.close()
            self._connect()
        ended = self.queue.change(
            lambda _, line: line.abandon_running(code="restart", detail=WORDS)
        )
        ran = [one for one in self.known if one.state == "running"]
        assert {r.request_id: r.error_detail for r in ended} == {
            one.request_id: one.receipt for one in ran
        }
        for one in ran:
            one.state, one.token, one.code = "failed", None, "restart"

    @rule(keep=st.integers(0, 6))
    def trim(self, keep: int) -> None:
        ended = [one for one in self.known if one.state in ("completed", "failed")]
        dropped = ended[: max(len(ended) - keep, 0)]
        assert self.queue.change(lambda _, line: line.trim(keep=keep).dropped) == len(dropped)
        self.known = [one for one in self.known if one not in dropped]

    @invariant()
    def the_queue_is_the_list(self) -> None:
        if not hasattr(self, "known"):
            return
        stored = [
            (r.request_id, r.state.value, r.epoch, r.token, r.receipt.value, r.error_code)
            for r in self.queue.list()
        ]
        assert stored == [
            (k.request_id, k.state, k.epoch, k.token, k.receipt, k.code) for k in self.known
        ]
        head = self.queue.head()
        assert head.accepted == sum(one.state == "accepted" for one in self.known)
        assert head.express == sum(one.state == "accepted" and one.express for one in self.known)
        assert head.running == sum(one.state == "running" for one in self.known)
        slot = [one.request_id for one in self.known if one.state == "running" and not one.express]
        assert len(slot) <= 1
        assert head.slot == (slot[0] if slot else None)
        for state in RequestState:
            listed = [r.request_id for r in self.queue.list(state=state)]
            assert listed == [one.request_id for one in self.known if one.state == state.value]

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()


def agree(world: World, *, examples: int, steps: int) -> None:
    search(lambda: QueueMachine(world), examples=examples, steps=steps, same=False)


def test_a_queue_in_memory_agrees_with_a_plain_list() -> None:
    def world() -> Callable[[], Store]:
        store = MemoryStore()
        return lambda: store

    agree(world, examples=150, steps=40)


def test_a_queue_in_sqlite_agrees_with_a_plain_list() -> None:
    with tempfile.TemporaryDirectory() as folder:
        numbers = count(1)

        def world() -> Callable[[], Store]:
            path = Path(folder) / f"{next(numbers)}.sqlite"
            return lambda: SqliteStore(path, boot_id="boot-1")

        agree(world, examples=40, steps=30)


def test_a_queue_in_postgresql_agrees_with_a_plain_list(postgres_url: str) -> None:
    from holdfast.stores.postgres import open_postgres

    numbers = count(1)

    def world() -> Callable[[], Store]:
        namespace = f"w{next(numbers)}"
        return lambda: open_postgres(postgres_url, namespace=namespace)

    agree(world, examples=20, steps=25)
