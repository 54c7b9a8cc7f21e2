"""Records that grow fit in every later state: requests, locks, counted holds, journal entries, and
texts that are cut.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.domains.gateway.adapter import Answer
from holdfast.domains.gateway.delivery import result_of
from holdfast.domains.gateway.request import draft_of
from holdfast.kernel import limits
from holdfast.kernel.codec import CUT, cut, json_bytes
from holdfast.kernel.errors import DeadlockDetected, InvalidValue, LockTimeout
from holdfast.kernel.limits import (
    ANSWER_CHARS_MAX,
    ENTRY_BYTES_MAX,
    HOLDER_BYTES_MAX,
    JOB_EVENT_BYTES_MAX,
    LOCK_HOLDS_BYTES_MAX,
    PROMPT_BYTES_MAX,
    RECORD_BYTES_MAX,
    REQUEST_DETAIL_BYTES_MAX,
    REQUEST_PAYLOAD_BYTES_MAX,
    REQUEST_RESULT_BYTES_MAX,
)
from holdfast.primitives.holds import HOLDS, Holds
from holdfast.primitives.journal import Journal
from holdfast.primitives.locks.records import LOCKS
from holdfast.primitives.queue import Draft, QueueRequest
from holdfast.primitives.queue.records import Receipt
from holdfast.stores.memory import MemoryStore
from holdfast.testing.clock import ManualClock
from tests.harness.machine import Machine
from tests.harness.queue_steps import SteppedQueue
from tests.harness.stores import STORES, open_store
from tests.harness.timeouts import PATIENCE_S
from tests.unit.job_world import CHARACTERS, WIDE, EventWorld
from tests.unit.lock_world import world_of

# --- texts ---


@given(st.text(), st.integers(0, 200))
def test_a_text_is_cut_to_its_bytes_and_says_so(text: str, bytes_max: int) -> None:
    text = text.encode("utf-8", "replace").decode()
    kept = cut(text, bytes_max)
    assert json_bytes(kept) <= max(bytes_max, json_bytes(CUT))
    assert (
        kept == text
        if json_bytes(text) <= bytes_max
        else (kept.endswith(CUT) and text.startswith(kept.removesuffix(CUT)))
    )


def test_a_cut_keeps_as_much_as_fits() -> None:
    for character in CHARACTERS:
        assert json_bytes(cut(character * 1000, 500)) > 500 - 6


def test_the_bounds_are_closed() -> None:
    """What is admitted and all that may be added to it fit into a record."""
    assert limits.JOB_VERDICT_BYTES_MIN > 64 << 10
    small = 8 * limits.LABEL_JSON_BYTES_MAX
    assert (
        REQUEST_PAYLOAD_BYTES_MAX + REQUEST_RESULT_BYTES_MAX + REQUEST_DETAIL_BYTES_MAX + small
        < RECORD_BYTES_MAX
    )
    # A redacted value may be longer than it was: `"apikey":1` becomes `"apikey":"[redacted]"`.
    assert 2 * (JOB_EVENT_BYTES_MAX - 64) <= ENTRY_BYTES_MAX


# --- requests to agents ---


class LongestQueue:
    """A queue whose requests say as much as they can."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.queue = SteppedQueue(store, Journal(store, actor=WIDE), "q" * 128)
        self._numbers = count()

    def accept(self, prompt: str) -> QueueRequest:
        draft = draft_of(
            "submit_prompt",
            {"prompt": prompt},
            lambda _: None,
            idempotency_key=f"{WIDE[:-9]}{next(self._numbers)}",
        )
        [request] = self.queue.accept([draft])
        assert isinstance(request, QueueRequest)
        return request

    def claim(self) -> tuple[str, int]:
        request = self.queue.claim()
        assert request is not None and request.token is not None
        return request.request_id, request.token


@pytest.fixture(params=[*STORES, "files"])
def line(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LongestQueue]:
    with closing(open_store(request.param, tmp_path, ManualClock(), request)) as store:
        yield LongestQueue(store)


def longest_prompt(character: str) -> str:
    return character * (PROMPT_BYTES_MAX // len(character.encode()))


@pytest.mark.parametrize("character", ['"', "🙂"])
def test_the_longest_request_ends_with_the_longest_answer(
    line: LongestQueue, character: str
) -> None:
    line.accept(longest_prompt(character))
    name, token = line.claim()
    line.queue.change(lambda _, it: it.deliver(name, token))
    answer = Answer(text="\0" * 1_000_000, source="stdout", facts={"status": "🙂" * 1_000_000})
    done = line.queue.complete(name, token, result_of(answer, True), receipt=Receipt.ANSWERED)
    assert done == line.queue.get(name)
    assert json_bytes(done) <= RECORD_BYTES_MAX
    assert (
        done.result is not None
        and done.result["cut"] is True
        and done.result["receipt"] == "answered"
    )
    # The longest answer beside few facts is kept as it is.
    line.accept(longest_prompt(character)[:-1])
    name, token = line.claim()
    answer = Answer(text="\0" * ANSWER_CHARS_MAX, source="stdout", facts={"exit_status": 1})
    done = line.queue.complete(name, token, result_of(answer, True))
    assert done.result is not None and done.result["text"] == "\0" * ANSWER_CHARS_MAX


def test_the_longest_request_fails_for_the_longest_reason(line: LongestQueue) -> None:
    line.accept(longest_prompt('"'))
    name, token = line.claim()
    failed = line.queue.fail(name, token, code="🙂" * 5000, detail="\0" * 2_000_000)
    assert failed == line.queue.get(name)
    assert failed.error_detail is not None and failed.error_detail.endswith(CUT)
    assert line.queue.head().slot is None


def test_a_payload_without_room_for_its_answer_is_refused(line: LongestQueue) -> None:
    for payload in (
        {"prompt": "x" * REQUEST_PAYLOAD_BYTES_MAX},
        {"prompt": "\0" * (REQUEST_PAYLOAD_BYTES_MAX // 6)},
    ):
        with pytest.raises(InvalidValue, match="into a file and pass its path"):
            line.queue.accept([Draft(kind="submit_prompt", payload=payload)])
    assert line.queue.list() == []


VALUES = st.one_of(
    st.integers(-(1 << 53), 1 << 53), st.sampled_from(CHARACTERS).map(lambda one: one * 500_000)
)
RESULTS = st.dictionaries(st.text('ab\0"🙂', max_size=5), VALUES, max_size=4)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(['"', "x", "🙂"]), RESULTS)
def test_any_result_can_be_kept(character: str, result: dict[str, Any]) -> None:
    with closing(MemoryStore()) as store:
        line = LongestQueue(store)
        line.accept(longest_prompt(character))
        name, token = line.claim()
        assert (
            json_bytes(line.queue.complete(name, token, result).result) <= REQUEST_RESULT_BYTES_MAX
        )


# --- locks ---


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*STORES, "files"])
@pytest.mark.parametrize("way", ["release", "kick", "take over"])
def test_many_shared_waiters_with_long_names_are_handed_a_lock(
    way: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """165 of them, each with the longest set of names. One row has no room for all of their grants:
    so many go as fit, and the others as these leave.
    """
    number = 165 if kind == "memory" else 40
    with world_of(kind, tmp_path, request) as world:
        owner = world.process(2)
        grant = owner.acquire(WIDE, by="owner", timeout_s=PATIENCE_S)
        jobs = [f"{at:03d}" + WIDE[3:] for at in range(number)]
        for at, by in enumerate(jobs):
            rest = [f"{at:03d}{more}" + WIDE[4:] for more in range(7)]
            world.leave_in_line([WIDE, *rest], by=by, pid=100 + at, mode="shared")
        assert world.queue(WIDE) == jobs
        if way == "release":
            assert grant.release()
        elif way == "kick":
            world.locks.kick(WIDE, why="test")
        else:
            world.machine.end(2)
            with pytest.raises(LockTimeout):
                world.locks.acquire(WIDE, by="other", timeout_s=0)
        served: list[str] = []
        while holders := world.holders(WIDE):
            row = world.store.get(LOCKS, WIDE)
            assert row is not None and json_bytes(row.record) <= LOCK_HOLDS_BYTES_MAX + 1024
            served += holders
            world.locks.kick(WIDE, why="next")
        assert served == jobs and world.queue(WIDE) == []


def test_the_longest_cycle_fits_its_journal_entry(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A journal entry names the jobs of a cycle, with names as long as they may be."""
    with world_of("memory", tmp_path, request) as world:
        jobs = [f"{at:02d}" + WIDE[2:] for at in range(20)]
        for by in jobs:
            world.locks.acquire(by, by=by, timeout_s=0)
        for at, by in enumerate(jobs[1:], 1):
            world.leave_in_line(jobs[at - 1], by=by, pid=100 + at)
        rest = [f"{at:02d}" + '"' * 254 for at in range(27)]
        with pytest.raises(DeadlockDetected):
            world.locks.acquire([jobs[-1], *rest], by=jobs[0], timeout_s=PATIENCE_S)
        [logged] = world.logged("lock.deadlock")[:1]
        assert json_bytes(logged.data) <= ENTRY_BYTES_MAX


# --- counted holds ---


@pytest.mark.slow
def test_holders_that_fill_a_record_can_still_be_renewed(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The times of a renewal may be longer than those of the grant: a whole second has no
    fraction.
    """
    clock = ManualClock()
    machine = Machine()
    with closing(open_store("memory", tmp_path, clock, request)) as store:
        holds = Holds(store, Journal(store, actor="tester"), machine.begin(1), label=WIDE)
        names = [f"{at:03d}" + WIDE[3:] for at in range(1000)]
        with pytest.raises(InvalidValue, match="may take") as caught:
            deque((holds.take("host", by=by) for by in names), 0)
        assert caught.value.fields["bytes"] > caught.value.fields["bytes_max"]
        number = holds.count("host")
        assert number > 300
        clock.advance(1.234567)
        assert {holds.take("host", by=by) for by in names[:number]} == {number}
        row = store.get(HOLDS, "host")
        assert row is not None and json_bytes(row.record) <= RECORD_BYTES_MAX
        holds.close()
    machine.close()


def test_a_process_whose_label_has_no_room_is_refused(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with world_of("memory", tmp_path, request) as world:
        vast = replace(world.machine.begin(9).current(), label="x" * HOLDER_BYTES_MAX)
        with pytest.raises(InvalidValue, match="shorter label"):
            world.locks.acquire("a", by="b", process=vast)
        with pytest.raises(InvalidValue, match="shorter label"):
            Holds(world.store, world.journal, world.machine.begin(8)).take(
                "a", by="b", process=vast
            )
        assert world.rows() == []


# --- events ---


def test_the_largest_event_fits_into_its_journal_entry_once_it_is_redacted() -> None:
    clock = ManualClock()
    with closing(MemoryStore(clock=clock)) as store:
        world = EventWorld(store)
        job = world.running()
        secrets = {f"{at:x}secret": 1 for at in range(2300)}
        logged = world.events.publish(job.job_id, "progress", data=secrets)
        assert json_bytes(logged.event) > 30_000
        # What another program signed with the job's key is taken or dropped, and never raises.
        for number in (2300, 2600, 4000):
            data = {f"{at:x}secret": 1 for at in range(number)}
            received = world.events.receive(world.forged(world.jobs.get_job(job.job_id), data=data))
            assert (received.event is None) == (number > 2300), received.dropped
