"""What an agent holds over MCP: heartbeats, grants that it did not collect, cancelled calls.
Without a client.
"""

import io
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast.domains.jobs import JobStatus
from holdfast.domains.workflows import Swap
from holdfast.kernel.errors import (
    LeaseLost,
    NotFound,
    StoreUnavailable,
    Unavailable,
    UpstreamUnavailable,
)
from holdfast.kernel.limits import MCP_UNCLAIMED_S
from holdfast.operations.locks import Acquire
from holdfast.operations.operation import Stop
from holdfast.primitives.locks import Grant
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.mcp import lines
from holdfast.surfaces.mcp.call import Call
from holdfast.surfaces.mcp.claims import Session
from holdfast.surfaces.mcp.identity import identify
from holdfast.surfaces.mcp.jobs import JobClaim
from holdfast.surfaces.mcp.lines import Lines
from holdfast.surfaces.mcp.locks import LockClaim
from holdfast.surfaces.mcp.recipes import SwapClaim
from holdfast.surfaces.mcp.server import Calls
from holdfast.surfaces.mcp.tool import Tool, ToolResult
from holdfast.surfaces.mcp.tools import TOOLS
from holdfast.testing.clock import ManualClock
from tests.harness.errors import raises
from tests.harness.timeouts import PATIENCE_S


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def hf(clock: ManualClock) -> Iterator[Holdfast]:
    with holdfast.connect("memory:", clock=clock) as made:
        yield made


@pytest.fixture
def session(hf: Holdfast) -> Iterator[Session]:
    made = Session(hf, identify("a", (), None))
    yield made
    made.close()


def ask(session: Session, tool: str, call: Call | None = None, /, **arguments: Any) -> ToolResult:
    """What a tool answers, without the notices that the server adds."""
    return TOOLS[tool](session, call or Call(), arguments)


def _job_claim(hf: Holdfast, *, idle_s: float = 30, timeout_s: float = 600) -> JobClaim:
    hf.jobs.register_job(
        "p", agent="t", agent_session="a", idle_timeout_sec=idle_s, timeout_sec=timeout_s
    )
    job = hf.jobs.pick_pending("a", holder=hf.processes.current())
    assert job is not None
    return JobClaim(hf, job, 0.0)


def test_a_job_lives_while_the_model_thinks(hf: Holdfast, clock: ManualClock) -> None:
    claim = _job_claim(hf, idle_s=30)
    assert claim.renew(5.0) == 10.0
    for second in range(10, 120, 10):
        clock.advance(10)
        assert claim.renew(float(second)) == second + 10.0
        assert hf.jobs.reap() == []
    assert list(claim.notices()) == []
    # And the proof that it was the signs of life: without them it is over.
    clock.advance(31)
    assert [job.error_code for job in hf.jobs.reap()] == ["timed_out"]
    assert [notice.kind for notice in claim.notices()] == ["job_timed_out"]
    assert claim.renew(1000.0) is None


def test_an_overdue_job_is_reported_before_anybody_looks(hf: Holdfast, clock: ManualClock) -> None:
    claim = _job_claim(hf, timeout_s=60)
    clock.advance(61)
    assert [notice.kind for notice in claim.notices()] == ["job_timed_out"]


def test_a_job_is_beaten_for_again_when_the_store_was_away(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = _job_claim(hf)
    with monkeypatch.context() as patch:
        patch.setattr(hf.jobs, "heartbeat", _away)
        assert claim.renew(10.0) == 11.0
    assert claim.renew(11.0) == 21.0


def test_a_returned_job_is_reported_as_lost_and_not_put_back_twice(hf: Holdfast) -> None:
    claim = _job_claim(hf)
    hf.jobs.requeue(claim.job.job_id)
    assert [notice.kind for notice in claim.notices()] == ["job_lost"]
    assert claim.release(1) is False
    picked = hf.jobs.pick_pending("a")
    assert picked is not None
    assert claim.release(1) is False
    assert hf.jobs.get_job(picked.job_id).status is JobStatus.RUNNING


def _lock_claim(hf: Holdfast) -> tuple[LockClaim, threading.Event]:
    ended = threading.Event()
    claim = LockClaim(hf, "lock:1", Acquire(names=["x"], by="a#1"))
    claim.begin(ended.set)
    return claim, ended


def test_a_lock_that_its_agent_does_not_collect_is_released(hf: Holdfast) -> None:
    held = hf.locks.acquire("x", by="other")
    claim, ended = _lock_claim(hf)
    assert claim.renew(1e12) is None
    hf.locks.release(held)
    assert ended.wait(PATIENCE_S)
    due_s = claim.renew(0.0)
    assert due_s is not None
    assert claim.renew(due_s - 0.001) == due_s
    assert claim.renew(due_s) is None
    assert hf.locks.status("x").holds == ()
    [notice] = claim.notices()
    assert notice.kind == "lease_lost"
    assert f"{MCP_UNCLAIMED_S:g} s" in notice.message
    with pytest.raises(LeaseLost):
        claim.result()


def test_an_agent_is_not_shown_a_lock_that_is_being_released(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes as its time to come is over: it got the lock, and worked
    without it.
    """
    claim, ended = _lock_claim(hf)
    assert ended.wait(PATIENCE_S)
    release = hf.locks.release
    reported: list[str] = []

    def release_late(grant: Grant) -> bool:
        reported.extend(notice.kind for notice in claim.notices())
        return release(grant)

    monkeypatch.setattr(hf.locks, "release", release_late)
    assert claim.renew(1e12) is None
    assert (reported, hf.locks.status("x").holds) == (["lease_lost"], ())


def test_a_lock_that_its_agent_knows_of_is_kept(hf: Holdfast) -> None:
    claim, ended = _lock_claim(hf)
    assert ended.wait(PATIENCE_S)
    assert [notice.kind for notice in claim.notices()] == ["lock_granted"]
    assert list(claim.notices()) == []
    assert claim.renew(1e12) is None
    assert len(hf.locks.status("x").holds) == 1
    assert claim.release(1) is True
    assert claim.release(1) is False


def test_a_lock_granted_while_its_request_is_given_up_is_released(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow store: the caller of a release is asked to repeat it, but the release happens without
    that.
    """
    slow, try_acquire = threading.Event(), hf.locks.try_acquire

    def slowly(names: tuple[str, ...], **how: object) -> Grant | None:
        assert slow.wait(PATIENCE_S)
        return try_acquire(names, by=str(how["by"]))

    monkeypatch.setattr(hf.locks, "try_acquire", slowly)
    claim, ended = _lock_claim(hf)
    with raises(StoreUnavailable, outcome="unknown"):
        claim.release(0)
    slow.set()
    assert ended.wait(PATIENCE_S)
    assert hf.locks.status("x").holds == ()
    assert hf.locks.statistics()["x"].grants == 1


def test_a_swap_that_its_agent_does_not_collect_is_given_up(hf: Holdfast) -> None:
    ended = threading.Event()
    claim = SwapClaim(hf, "swap:1", "large", grace_s=1, timeout_s=60)
    claim.begin(ended.set)
    assert ended.wait(PATIENCE_S)
    due_s = claim.renew(0.0)
    assert due_s is not None
    assert claim.renew(due_s) is None
    assert hf.workflows.swap_status().marker is None
    with pytest.raises(LeaseLost):
        claim.finish(None)
    # No agent got the signal to load, so none did.
    assert hf.workflows.swap_status() == (None, None, [], None)


def test_a_swap_that_becomes_ready_while_it_is_given_up_is_released(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a lock: the swap would stand in everybody's way until the agent ends."""
    slow, enter = threading.Event(), Swap.__enter__

    def slowly(swap: Swap) -> Swap:
        assert slow.wait(PATIENCE_S)
        return enter(swap)

    monkeypatch.setattr(Swap, "__enter__", slowly)
    ended = threading.Event()
    claim = SwapClaim(hf, "swap:1", "large", grace_s=1, timeout_s=60)
    claim.begin(ended.set)
    with raises(StoreUnavailable, outcome="unknown"):
        claim.release(0)
    slow.set()
    assert ended.wait(PATIENCE_S)
    assert hf.workflows.swap_status().marker is None
    assert [event.event for event in hf.workflows.swap_log()] == ["swap_started", "swap_failed"]
    with raises(LeaseLost, recipe="large"):
        claim.result()


def test_a_swap_to_what_is_loaded_is_over_at_once(session: Session) -> None:
    with session.hf.workflows.swap("large"):
        waiting = ask(session, "yield_or_swap", Call(), action="swap", recipe="large")
        assert waiting["state"] == "waiting"
    claim = session.claim(waiting["handle"], SwapClaim)
    claim.wait(PATIENCE_S, Call())
    assert session.hf.workflows.swap_status().marker is None
    assert [notice.kind for notice in claim.notices()] == ["swap_not_needed"]
    assert claim.renew(1e12) is None
    assert ask(session, "wait", handle=waiting["handle"])["state"] == "loaded"
    assert session.claims() == []
    again = {"action": "swap", "recipe": "large", "wait_s": 20}
    assert ask(session, "yield_or_swap", **again)["state"] == "loaded"
    assert ask(session, "yield_or_swap", **again, reload=True)["state"] == "ready"


@pytest.mark.parametrize("informed", [True, False])
def test_an_abandoned_swap_may_have_loaded_only_after_its_signal(
    session: Session, informed: bool
) -> None:
    with session.hf.workflows.swap("small"):
        pass
    call = Call() if informed else _cancelled()
    handle = ask(session, "yield_or_swap", call, action="swap", recipe="large", wait_s=20)["handle"]
    session.claim(handle, SwapClaim).wait(PATIENCE_S, Call())
    assert session.release(handle) is True
    status = session.hf.workflows.swap_status()
    assert (status.current is None, status.unknown is None) == (informed, not informed)


def test_an_agent_too_late_for_its_swap_gets_no_signal_to_load(session: Session) -> None:
    handle = ask(session, "yield_or_swap", _cancelled(), action="swap", recipe="large")["handle"]
    claim = session.claim(handle, SwapClaim)
    claim.wait(PATIENCE_S, Call())
    assert claim.renew(1e12) is None
    with pytest.raises(LeaseLost):
        ask(session, "wait", handle=handle)
    assert session.claims() == []


def test_a_swap_is_not_given_up_by_a_store_that_does_not_answer(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = ask(session, "yield_or_swap", Call(), action="swap", recipe="large", wait_s=20)[
        "handle"
    ]
    with monkeypatch.context() as patch:
        patch.setattr(Swap, "check", _away)
        with pytest.raises(StoreUnavailable):
            ask(session, "wait", handle=handle)
    assert ask(session, "wait", handle=handle)["state"] == "ready"


def test_a_swap_whose_giving_up_failed_can_be_given_up_again(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handle was dropped as that of one that is over, and the swap stood in everybody's way
    until the agent ended.
    """
    handle = ask(session, "yield_or_swap", Call(), action="swap", recipe="large", wait_s=20)[
        "handle"
    ]
    with monkeypatch.context() as patch:
        patch.setattr(Swap, "fail", _away)
        with pytest.raises(StoreUnavailable):
            session.release(handle)
    assert ask(session, "wait", handle=handle)["state"] == "ready"
    assert session.release(handle) is True
    assert session.hf.workflows.swap_status().marker is None


def test_releasing_a_refused_request_frees_nothing(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hf.locks, "try_acquire", _away)
    claim, ended = _lock_claim(hf)
    assert ended.wait(PATIENCE_S)
    assert [notice.kind for notice in claim.notices()] == ["lock_refused"]
    assert claim.release(1) is False


def test_a_grant_being_released_is_not_shown_as_held(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = ask(session, "acquire", _cancelled(), names=["x"])["handle"]
    claim, check = session.claim(handle, LockClaim), session.hf.locks.check
    claim.wait(PATIENCE_S, Call())

    def check_and_give_back(grant: Grant) -> None:
        check(grant)
        claim.renew(1e12)

    monkeypatch.setattr(session.hf.locks, "check", check_and_give_back)
    with raises(LeaseLost, names=["x"]):
        ask(session, "wait", handle=handle)
    assert session.hf.locks.status("x").holds == ()


def _cancelled() -> Call:
    call = Call()
    call.cancel()
    return call


def _away(*_: object, **__: object) -> None:
    raise StoreUnavailable("it is away", outcome="none")


def test_what_was_made_in_a_call_that_is_taken_back_is_undone(session: Session) -> None:
    call = Call()
    call.cancel()
    assert ask(session, "acquire", call, names=["x"])["state"] in ("held", "waiting")
    call.settle(failed=False)
    assert session.claims() == []
    assert session.hf.locks.status("x").holds == ()
    kept = Call()
    ask(session, "acquire", kept, names=["x"], wait_s=20)
    kept.settle(failed=False)
    kept.cancel()
    assert len(session.hf.locks.status("x").holds) == 1


def test_an_error_that_names_a_path_which_is_not_utf_8_is_that_error(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> ToolResult:
        raise StoreUnavailable("odd-\udcff is gone", path="odd-\udcff")

    monkeypatch.setitem(TOOLS, "whoami", fail)
    answer = Calls(session).run_here("whoami", {}, Call()).structured_content
    assert answer is not None
    error, [notice] = answer["error"], answer["pending"]
    assert (error["code"], error["fields"]) == ("store_unavailable", {"path": "odd-\\udcff"})
    assert "odd-\\udcff is gone" in error["message"] and "odd-\\udcff" in notice["message"]


def test_a_withdrawn_call_does_not_use_up_a_notice(session: Session) -> None:
    held = session.hf.locks.acquire("x", by="other")
    handle = ask(session, "acquire", Call(), names=["x"])["handle"]
    held.release()
    session.claim(handle, LockClaim).wait(PATIENCE_S, Call())
    for tool, arguments in (("whoami", {}), ("wait", {"handle": handle})):
        call = Call()
        call.cancel()
        assert not Calls(session).run_here(tool, arguments, call).is_error
    heard = Calls(session).run_here("whoami", {}, Call()).structured_content
    assert heard is not None and [notice["kind"] for notice in heard["pending"]] == ["lock_granted"]


class SlowGateway:
    """A gateway that accepts a prompt, and then does not answer."""

    agent = "b"

    def __init__(self) -> None:
        self.cancelled: list[str] = []

    def prompt(self, *_: object, **__: object) -> dict[str, object]:
        return {"request_id": "r-1", "state": "accepted", "epoch": 1}

    def request(self, *_: object, **__: object) -> None:
        raise UpstreamUnavailable("it takes too long to answer")

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)


def test_an_accepted_prompt_counts_as_accepted_when_its_gateway_falls_silent(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reported as refused, it was sent again, and done twice if it had started."""
    gateway = SlowGateway()
    monkeypatch.setattr(session.hf, "gateway", lambda _: gateway)
    reported = Calls(session).run_here(
        "send_request", {"agent": "b", "prompt": "go", "wait_s": 1}, Call()
    )
    assert not reported.is_error and reported.structured_content is not None
    assert (reported.structured_content["request_id"], reported.structured_content["state"]) == (
        "r-1",
        "accepted",
    )
    assert gateway.cancelled == []
    Calls(session).run_here(
        "send_request", {"agent": "b", "prompt": "go", "wait_s": 1}, _cancelled()
    )
    assert gateway.cancelled == ["r-1"]


def test_a_hand_that_is_closed_takes_nothing(hf: Holdfast) -> None:
    session = Session(hf, identify("a", (), None))
    ask(session, "acquire", Call(), names=["x"], wait_s=20)
    session.close()
    assert hf.locks.status("x").holds == ()
    with pytest.raises(Unavailable):
        ask(session, "acquire", Call(), names=["y"], wait_s=20)
    assert hf.locks.status("y").holds == ()


def test_a_handle_is_for_what_it_is_for(session: Session) -> None:
    handle = ask(session, "acquire", Call(), names=["x"])["handle"]
    with raises(NotFound, handle="lock:1"):
        session.claim(handle, JobClaim)
    with pytest.raises(NotFound):
        ask(session, "release", handle="lock:99")


def test_a_stop_may_be_asked_for_when_it_is_over() -> None:
    stop = Stop()
    stop.set()
    stop.close()
    stop.close()
    stop.set()


def test_two_identities_of_one_label_differ_and_no_label_is_a_part_of_another() -> None:
    one, other = identify("job-1/x", (), None), identify("job-1/x", (), None)
    assert one.by != other.by
    assert "/" not in one.by
    assert one.queues == ("job-1/x",)
    assert len(identify("l" * 256, ("q",), None).by) <= 256


def test_lines_are_bounded_and_none_is_lost_behind_one_that_is_too_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lines, "MCP_LINE_BYTES_MAX", 10)
    source = Lines(io.BytesIO(b"123456789\n1234567890\n" + b"x" * 35 + b"\n\xff\nlast"))
    assert [source.readline() for _ in range(4)] == ["123456789\n", "\ufffd\n", "last", ""]
    assert caplog.text.count("skipped") == 2


@pytest.mark.parametrize(
    ("message", "known"),
    [
        (r'{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"x":"\ud800"}}', 3),
        (
            r'{"method":"tools/call","params":{"arguments":{"id":5,"x":"\ud800"}},"jsonrpc":"2.0","id":"s"}',
            "s",
        ),
        (r'{"method":"tools/call","params":{"x":"\ud800","id":5}}', None),
        (r'{"jsonrpc":"2.0","id":3,"method":"notifications/x","params":{"x":"\ud800"}}', None),
    ],
)
def test_a_call_that_cannot_be_read_is_answered(message: str, known: int | str | None) -> None:
    output = Lines(io.BytesIO(message.encode())).readline()
    if known is None:
        assert output == message
    else:
        call = json.loads(output)
        assert (call["id"], call["params"]["name"]) == (known, lines.UNREADABLE)


@pytest.mark.parametrize("tool", TOOLS.values(), ids=list(TOOLS))
def test_a_tool_takes_no_field_that_it_does_not_know(tool: Tool, session: Session) -> None:
    with pytest.raises(ValueError, match="unknown field"):
        tool(session, Call(), {"surprise": 1})
