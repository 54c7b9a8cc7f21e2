"""The gateway's rules: admission, epochs, reconciliation, restarts, interrupts, and a worker that
survives everything.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.domains.gateway import AgentState, Answer, DeliveryWorker, Gateway
from holdfast.domains.gateway.adapter import (
    CommandSpec,
    TmuxSpec,
    spec_of,
    spec_of_manifest,
)
from holdfast.domains.gateway.delivery import needless
from holdfast.domains.gateway.records import ATTACHMENTS, left_by
from holdfast.domains.gateway.request import Submission, draft_of
from holdfast.kernel import faults
from holdfast.kernel.agent_adapter import ManagedAdapter, RestAdapter
from holdfast.kernel.errors import (
    AgentGone,
    Blocked,
    Fenced,
    Full,
    Held,
    InvalidValue,
    NotFound,
    RecordInvalid,
    Refused,
    StoreUnavailable,
    UpstreamUnavailable,
)
from holdfast.kernel.limits import ANSWER_CHARS_MAX, PROMPT_BYTES_MAX
from holdfast.kernel.store import Store, Tx
from holdfast.primitives.journal import Journal
from holdfast.primitives.queue import Queue, QueueRequest, RequestState
from holdfast.primitives.queue.records import REQUESTS, Receipt
from holdfast.processes.procfs import Procfs
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.clock import ManualClock
from holdfast.testing.faults import at_point
from tests.harness import timeouts
from tests.harness.errors import raises
from tests.harness.timeouts import PATIENCE_S
from tests.unit.scripted_agent import ScriptedAgent

AGENT = "gpu"


class Desk:
    """A store, and gateways that are opened on it one after the other."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.journal = Journal(store, actor="tester")
        self.queue = Queue(store, self.journal, AGENT, depth_max=8)

    def gateway(self, agent: ScriptedAgent, *, take: bool = True) -> Gateway:
        gateway = Gateway(self.queue, self.journal, agent, Procfs())
        if take:
            gateway.attach()
            gateway.look()
        return gateway

    def kinds(self) -> list[str]:
        return [entry.kind for batch in self.journal.since() for entry in batch.entries]


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.prove)])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    store: Store
    if request.param == "memory":
        store = MemoryStore()
    elif request.param == "sqlite":
        store = SqliteStore(tmp_path / "queue.sqlite", boot_id="boot-1")
    else:
        from holdfast.stores.postgres import open_postgres

        store = open_postgres(request.getfixturevalue("postgres_url"), namespace="default")
    yield Desk(store)
    store.close()


@contextmanager
def working(gateway: Gateway, **how: object) -> Iterator[DeliveryWorker]:
    worker = DeliveryWorker(gateway, inspect_every_s=0.02, **how)  # type: ignore[arg-type]
    worker.start()
    try:
        yield worker
    finally:
        worker.stop(grace_s=0.2)


def ask(
    gateway: Gateway, prompt: str = "hello", *, epoch: int | None = None, key: str | None = None
) -> QueueRequest:
    return _asked(gateway, "submit_prompt", {"prompt": prompt}, epoch, key)


def interrupt(gateway: Gateway) -> QueueRequest:
    return _asked(gateway, "interrupt", {}, None, None)


def _asked(
    gateway: Gateway, kind: str, payload: dict[str, str], epoch: int | None, key: str | None
) -> QueueRequest:
    draft = draft_of(kind, payload, gateway.adapter.check, idempotency_key=key)
    (answer,) = gateway.accept([Submission(draft, epoch)])
    if isinstance(answer, QueueRequest):
        return answer
    raise answer


def ended(gateway: Gateway, request: QueueRequest) -> QueueRequest:
    done = gateway.queue.wait(request.request_id, PATIENCE_S)
    assert done.state in (RequestState.COMPLETED, RequestState.FAILED), done
    return done


def until(gateway: Gateway, request: QueueRequest, state: RequestState) -> QueueRequest:
    from holdfast.primitives.queue.transaction import topic_of

    with gateway.queue.store.listen([topic_of(AGENT)]) as ears:
        while (found := gateway.queue.get(request.request_id)).state is not state:
            ears.wait(1)
    return found


def test_prompts_are_delivered_in_order_and_answered(desk: Desk) -> None:
    agent = ScriptedAgent()
    gateway = desk.gateway(agent)
    requests = [ask(gateway, str(n)) for n in range(5)]
    with working(gateway):
        done = [ended(gateway, request) for request in requests]
    assert agent.received == [("one", str(n)) for n in range(5)]
    assert done[0].result == {
        "receipt": "answered",
        "text": "re: 0",
        "source": "output",
        "truncated": False,
    }
    assert all(one.receipt is Receipt.ANSWERED and one.token is None for one in done)
    assert gateway.status().queue_depth == 0


def test_first_sight_of_an_agent_is_no_replacement(desk: Desk) -> None:
    gateway = desk.gateway(ScriptedAgent())
    status = gateway.status()
    assert (status.managed_agent_instance_epoch, status.managed_agent_recovery) == (1, "idle")
    assert (status.request_admission, status.managed_agent_instance_id) == ("open", "one")


def test_an_agent_that_is_away_shuts_admission_until_it_returns(desk: Desk) -> None:
    agent = ScriptedAgent()
    gateway = desk.gateway(agent)
    waiting = ask(gateway, "early")
    agent.instance_id = None
    gateway.look()
    status = gateway.status()
    assert (status.gateway_health, status.managed_agent_connectivity) == ("healthy", "unavailable")
    assert (status.managed_agent_recovery, status.request_admission) == (
        "awaiting_rebind",
        "blocked_unavailable",
    )
    with raises(UpstreamUnavailable, outcome="none", request_admission="blocked_unavailable"):
        ask(gateway)
    with working(gateway):
        agent.instance_id = "one"
        assert ended(gateway, waiting).state is RequestState.COMPLETED
    assert gateway.status().managed_agent_instance_epoch == 1
    assert ask(gateway).epoch == 1
    assert [k for k in desk.kinds() if k.startswith("gateway.agent")] == [
        "gateway.agent_unavailable",
        "gateway.agent_returned",
    ]


def test_a_replacement_gets_no_prompt_meant_for_its_predecessor(desk: Desk) -> None:
    agent = ScriptedAgent()
    gateway = desk.gateway(agent)
    old = ask(gateway, "old")
    agent.instance_id = "two"
    gateway.look()
    status = gateway.status()
    assert (status.managed_agent_instance_epoch, status.managed_agent_recovery) == (
        2,
        "reconciliation_required",
    )
    assert (status.request_admission, status.managed_agent_connectivity) == (
        "blocked_reconciliation",
        "connected",
    )
    left = left_by(status)
    assert (left.gateway_health, left.managed_agent_connectivity) == ("not_attached", "unavailable")
    assert (left.request_admission, left.managed_agent_recovery) == (
        "blocked_reconciliation",
        "reconciliation_required",
    )
    with raises(Blocked, request_admission="blocked_reconciliation", epoch=2):
        ask(gateway)
    with working(gateway):
        until_idle(gateway)
    assert agent.received == []
    assert gateway.queue.get(old.request_id).state is RequestState.ACCEPTED


def until_idle(gateway: Gateway) -> None:
    """Several rounds of looking, each of which would have been a chance to deliver."""
    for _ in range(5):
        gateway.look()
        gateway.queue.change(lambda tx, _: tx.notify("queue/gpu"))


@pytest.mark.parametrize("action", ["replay", "discard"])
def test_an_operator_opens_it_again(desk: Desk, action: str) -> None:
    agent = ScriptedAgent()
    gateway = desk.gateway(agent)
    old = [ask(gateway, str(n)) for n in range(3)]
    agent.instance_id = "two"
    gateway.look()
    done = gateway.reconcile(action, epoch=2)  # type: ignore[arg-type]
    assert done.requests == [request.request_id for request in old]
    assert done.left == []
    assert gateway.status().request_admission == "open"
    new = ask(gateway, "new")
    with working(gateway):
        results = [ended(gateway, request) for request in [*old, new]]
    if action == "replay":
        assert agent.received == [("two", text) for text in ("0", "1", "2", "new")]
        assert all(one.epoch == 2 for one in results)
    else:
        assert agent.received == [("two", "new")]
        assert [one.error_code for one in results] == ["discarded"] * 3 + [None]


def test_some_may_be_replayed_and_the_others_discarded(desk: Desk) -> None:
    agent = ScriptedAgent()
    gateway = desk.gateway(agent)
    a, b, c = (ask(gateway, text).request_id for text in "abc")
    agent.instance_id = "two"
    gateway.look()
    first = gateway.reconcile("replay", epoch=2, requests=[c, a])
    assert (first.requests, first.left) == ([a, c], [b])
    assert gateway.status().request_admission == "blocked_reconciliation"
    assert gateway.claim() is None
    with raises(NotFound, request_id="nosuch"):
        gateway.reconcile("discard", epoch=2, requests=["nosuch"])
    gateway.reconcile("discard", epoch=2, requests=[b])
    assert gateway.status().request_admission == "open"


def test_a_decision_about_another_epoch_or_about_nothing_is_refused(desk: Desk) -> None:
    agent = ScriptedAgent()
    gateway = desk.gateway(agent)
    with raises(Refused, epoch=1):
        gateway.reconcile("replay", epoch=1)
    ask(gateway, "old")
    agent.instance_id = "two"
    gateway.look()
    with raises(Refused, epoch=2, expected_epoch=1):
        gateway.reconcile("replay", epoch=1)
    with pytest.raises(InvalidValue):
        gateway.reconcile("forget", epoch=2)  # type: ignore[arg-type]
    gateway.reconcile("replay", epoch=2)


def test_an_agent_replaced_while_the_gateway_is_down_is_noticed(desk: Desk) -> None:
    first = desk.gateway(ScriptedAgent("one"))
    old = ask(first, "old")
    first.detach()
    second = desk.gateway(ScriptedAgent("two"))
    assert second.status().managed_agent_recovery == "reconciliation_required"
    assert second.queue.get(old.request_id).state is RequestState.ACCEPTED
    assert second.claim() is None


def test_a_clean_stop_and_start_forgets_nothing(desk: Desk) -> None:
    first = desk.gateway(ScriptedAgent("one"))
    old = ask(first, "old")
    first.detach()
    agent = ScriptedAgent("one")
    second = desk.gateway(agent)
    assert second.status().managed_agent_instance_epoch == 1
    with working(second):
        assert ended(second, old).state is RequestState.COMPLETED
    assert agent.received == [("one", "old")]


@pytest.mark.parametrize("where", ["after the claim", "at the delivery"])
def test_a_swap_between_claim_and_delivery_is_caught(desk: Desk, where: str) -> None:
    agent = ScriptedAgent()
    gateway = desk.gateway(agent)
    old = ask(gateway, "old")
    swapped = threading.Event()

    def swap(point: str) -> None:
        if point == "gateway.claimed":
            agent.instance_id = "two"
            swapped.set()

    if where == "after the claim":
        faults.hook = swap
    else:
        agent.swap_at_delivery = "two"
        swapped.set()
    try:
        with working(gateway):
            assert swapped.wait(PATIENCE_S)
            timeouts.until(lambda: gateway.status().request_admission == "blocked_reconciliation")
            kept = until(gateway, old, RequestState.ACCEPTED)
    finally:
        faults.hook = None
    assert (kept.epoch, gateway.status().managed_agent_instance_epoch) == (1, 2)
    assert agent.received == []


def test_an_agent_replaced_while_nothing_waits_needs_no_decision(desk: Desk) -> None:
    agent = ScriptedAgent()
    gateway = desk.gateway(agent)
    agent.instance_id = "two"
    gateway.look()
    status = gateway.status()
    assert (
        status.managed_agent_instance_epoch,
        status.managed_agent_recovery,
        status.request_admission,
    ) == (2, "idle", "open")
    new = ask(gateway, "new")
    with working(gateway):
        assert ended(gateway, new).state is RequestState.COMPLETED
    assert agent.received == [("two", "new")]


def test_an_agent_replaced_while_the_gateway_is_down_and_nothing_waits_needs_no_decision(
    desk: Desk,
) -> None:
    desk.gateway(ScriptedAgent("one")).detach()
    status = desk.gateway(ScriptedAgent("two")).status()
    assert (status.managed_agent_instance_epoch, status.request_admission) == (2, "open")


def test_when_all_that_waited_for_a_decision_was_cancelled_admission_opens(desk: Desk) -> None:
    agent = ScriptedAgent()
    gateway = desk.gateway(agent)
    old = [ask(gateway, word) for word in ("one", "two")]
    agent.instance_id = "two"
    gateway.look()
    gateway.cancel(old[0].request_id)
    assert gateway.status().request_admission == "blocked_reconciliation"
    gateway.cancel(old[1].request_id)
    assert gateway.status().request_admission == "open"
    ask(gateway, "new")


def test_an_agent_whose_own_process_is_gone_is_refused_with_a_code_of_its_own(desk: Desk) -> None:
    agent = ScriptedAgent()
    gateway = desk.gateway(agent)
    agent.instance_id, agent.reason = None, "process_dead"
    gateway.look()
    with pytest.raises(AgentGone) as refused:
        ask(gateway, "lost")
    assert (refused.value.code, refused.value.fields["reason"]) == ("agent_gone", "process_dead")
    assert refused.value.fields["request_admission"] == "blocked_unavailable"


def test_what_was_delivered_without_a_known_end_says_so(desk: Desk) -> None:
    agent = ScriptedAgent()
    agent.end_unknown = True
    gateway = desk.gateway(agent)
    one = ask(gateway, "one")
    with working(gateway):
        done = ended(gateway, one)
    assert (done.state, done.receipt, done.result) == (
        RequestState.COMPLETED,
        Receipt.DELIVERED,
        {"receipt": "delivered", "end_unknown": True},
    )


def test_what_was_claimed_before_a_replacement_waits_for_a_decision(desk: Desk) -> None:
    agent = ScriptedAgent()
    gateway = desk.gateway(agent)
    old = ask(gateway, "old")
    claimed = gateway.claim()
    assert claimed is not None
    agent.instance_id = "two"
    gateway.look()
    gateway.put_back(claimed)
    assert gateway.status().request_admission == "blocked_reconciliation"
    assert gateway.reconcile("replay", epoch=2).requests == [old.request_id]
    with working(gateway):
        assert ended(gateway, old).state is RequestState.COMPLETED
    assert agent.received == [("two", "old")]


def test_what_ran_when_the_gateway_died_is_ended_and_the_rest_kept_in_order(desk: Desk) -> None:
    agent = ScriptedAgent()
    first = desk.gateway(agent)
    requests = [ask(first, str(n)) for n in range(3)]
    running = first.claim()
    assert running is not None
    first.delivered(running)
    _as_if_killed(desk)
    second = desk.gateway(agent, take=False)
    (lost,) = second.attach()
    second.look()
    assert (lost.request_id, lost.error_code) == (requests[0].request_id, "interrupted_by_restart")
    assert "was delivered" in str(lost.error_detail)
    with working(second):
        for request in requests[1:]:
            assert ended(second, request).state is RequestState.COMPLETED
    assert agent.received == [("one", "1"), ("one", "2")]
    with pytest.raises(Fenced):
        first.complete(running, {}, Receipt.ANSWERED)
    with pytest.raises(Fenced):
        ask(first)


def _as_if_killed(desk: Desk) -> None:
    """What a killed gateway leaves behind: its record, with a process that has ended."""
    from msgspec.structs import replace

    def body(tx: Tx) -> None:
        row = tx.get(ATTACHMENTS, AGENT)
        assert row is not None
        attachment = row.record
        assert attachment.server is not None
        process = replace(attachment.server.process, start_ticks=1)
        tx.put(
            ATTACHMENTS,
            AGENT,
            replace(attachment, server=replace(attachment.server, process=process)),
        )

    desk.store.transact(body, scope=[ATTACHMENTS])


def test_an_unconfirmed_delivery_is_reported_as_unknown(desk: Desk) -> None:
    first = desk.gateway(ScriptedAgent())
    ask(first)
    assert first.claim() is not None
    _as_if_killed(desk)
    (lost,) = desk.gateway(ScriptedAgent(), take=False).attach()
    assert "delivery unknown" in str(lost.error_detail)


def test_a_queue_is_served_for_the_agent_that_it_belongs_to_and_no_other(desk: Desk) -> None:
    first = desk.gateway(ScriptedAgent())
    first.belong("name gpu")
    first.belong("name gpu")
    with raises(Held, agent="gpu", owner="name gpu"):
        first.belong("id gpu")
    first.detach()
    with raises(Held, agent="gpu", owner="name gpu"):
        desk.gateway(ScriptedAgent(), take=False).attach("id gpu")
    # A gateway that does not know the owner takes nothing away from it.
    desk.gateway(ScriptedAgent()).detach()
    desk.gateway(ScriptedAgent(), take=False).attach("name gpu")
    row = desk.store.get(ATTACHMENTS, AGENT)
    assert row is not None and row.record.owner == "name gpu"


def test_a_second_gateway_is_refused_while_the_first_lives(desk: Desk) -> None:
    first = desk.gateway(ScriptedAgent())
    with pytest.raises(Held, match="detach gpu"):
        desk.gateway(ScriptedAgent())
    first.detach()
    desk.gateway(ScriptedAgent())
    first.detach()
    assert desk.kinds().count("gateway.detached") == 1


@pytest.mark.parametrize("step_s", [-86400.0, 86400.0, 400 * 86400.0])
def test_a_clock_that_is_stepped_takes_no_gateway_for_dead_and_changes_no_order(
    tmp_path: Path, step_s: float
) -> None:
    clock = ManualClock()
    desk = Desk(SqliteStore(tmp_path / "queue.sqlite", boot_id="boot-1", clock=clock))
    agent = ScriptedAgent()
    gateway = desk.gateway(agent)
    first, kept = ask(gateway, "1"), ask(gateway, "2", key="k")
    clock.advance(step_s)
    third = ask(gateway, "3")
    with pytest.raises(Held):
        desk.gateway(ScriptedAgent())
    gateway.renew()
    with working(gateway):
        assert [ended(gateway, one).state for one in (first, kept, third)] == [
            RequestState.COMPLETED
        ] * 3
    clock.advance(-step_s)
    gateway.renew()
    assert ask(gateway, "2", key="k").request_id == kept.request_id
    with pytest.raises(Held):
        desk.gateway(ScriptedAgent())
    assert agent.received == [("one", "1"), ("one", "2"), ("one", "3")]
    gateway.detach()
    assert desk.gateway(agent).attachment.epoch == 1
    desk.store.close()


def test_a_gateway_that_was_taken_over_ends(desk: Desk) -> None:
    first = desk.gateway(ScriptedAgent())
    lost = threading.Event()
    with working(first, on_lost=lost.set):
        _as_if_killed(desk)
        second = desk.gateway(ScriptedAgent())
        ask(second, "x")
        first.queue.change(lambda tx, _: tx.notify("queue/gpu"))
        assert lost.wait(PATIENCE_S)


def test_a_gateway_taken_over_between_claim_and_delivery_delivers_nothing(desk: Desk) -> None:
    agent = ScriptedAgent()
    first = desk.gateway(agent)
    lost = threading.Event()

    def taken_over(_: str) -> None:
        _as_if_killed(desk)
        desk.gateway(ScriptedAgent())

    asked = ask(first)
    with at_point("gateway.delivery.before", taken_over), working(first, on_lost=lost.set):
        assert lost.wait(PATIENCE_S)
    assert agent.received == []
    assert desk.queue.get(asked.request_id).error_code == "interrupted_by_restart"


def test_a_prompt_waits_while_its_gateway_is_unknown(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = ScriptedAgent()
    gateway = desk.gateway(agent)
    down = [StoreUnavailable("away", outcome="none")]
    check = gateway.check_serving

    def checked() -> None:
        if down:
            raise down.pop()
        check()

    monkeypatch.setattr(gateway, "check_serving", checked)
    with working(gateway):
        assert ended(gateway, ask(gateway)).state is RequestState.COMPLETED
    assert (down, agent.received) == ([], [("one", "hello")])
    assert "request.readmitted" in desk.kinds()


def test_an_interrupt_reaches_a_busy_agent_and_ends_what_runs(desk: Desk) -> None:
    agent = ScriptedAgent(instant=False)
    gateway = desk.gateway(agent)
    with working(gateway):
        long, behind = ask(gateway, "long"), ask(gateway, "behind")
        assert agent.began.wait(PATIENCE_S)
        urgent = interrupt(gateway)
        assert ended(gateway, urgent).result == {
            "disposition": "accepted",
            "stopped": long.request_id,
        }
        stopped = ended(gateway, long)
        assert (stopped.state, stopped.error_code) == (RequestState.FAILED, "interrupted")
        assert ended(gateway, behind).state is RequestState.COMPLETED
    assert agent.interrupts == ["one"]


def test_interrupts_that_wait_together_are_sent_once(desk: Desk) -> None:
    agent = ScriptedAgent(instant=False)
    gateway = desk.gateway(agent)
    draft = draft_of("interrupt", {}, agent.check)
    many = [r for r in gateway.accept([Submission(draft)] * 3) if isinstance(r, QueueRequest)]
    with working(gateway):
        done = [ended(gateway, request) for request in many]
    assert len(agent.interrupts) == 1
    assert [(one.result or {}).get("coalesced_with") for one in done] == [
        None,
        many[0].request_id,
        many[0].request_id,
    ]


def test_an_interrupt_before_the_delivery_means_it_never_comes(desk: Desk) -> None:
    agent = ScriptedAgent()
    gateway = desk.gateway(agent)
    request = ask(gateway, "never")
    sent: list[QueueRequest] = []

    def hook(point: str) -> None:
        if point == "gateway.claimed" and not sent:
            sent.append(interrupt(gateway))
            ended(gateway, sent[0])

    faults.hook = hook
    try:
        with working(gateway):
            done = ended(gateway, request)
    finally:
        faults.hook = None
    assert (done.error_code, agent.received, agent.interrupts) == ("interrupted", [], [])
    assert "before it was delivered" in str(done.error_detail)


def test_an_interrupt_stops_nothing_that_came_after_it(desk: Desk) -> None:
    gateway = desk.gateway(ScriptedAgent())
    first = ask(gateway, "1")
    running = gateway.claim()
    assert running is not None
    urgent = interrupt(gateway)
    second = ask(gateway, "2")
    assert urgent.beside == first.request_id
    assert needless(urgent, running) is None
    assert "has ended" in str(needless(urgent, None))
    assert "has ended" in str(needless(urgent, second))
    from msgspec.structs import replace

    idle = replace(urgent, beside=None)
    assert needless(idle, None) is None
    assert "came after" in str(needless(idle, second))


@pytest.mark.parametrize("what", ["deliver", "answer"])
def test_whatever_an_adapter_raises_fails_one_request_and_nothing_else(
    desk: Desk, what: str
) -> None:
    agent = ScriptedAgent()
    gateway = desk.gateway(agent)
    with working(gateway):
        agent.broken[what] = ZeroDivisionError("oops")
        bad = ended(gateway, ask(gateway, "1"))
        assert (bad.error_code, bad.error_detail) == ("adapter_failed", "ZeroDivisionError: oops")
        agent.broken[what] = UpstreamUnavailable("no route", outcome="none")
        worse = ended(gateway, ask(gateway, "2"))
        assert (worse.error_code, (worse.result or {})["delivered"]) == (
            "upstream_unavailable",
            "no",
        )
        agent.broken["interrupt"] = RuntimeError("stuck")
        assert ended(gateway, interrupt(gateway)).error_code == "adapter_failed"
        agent.broken.clear()
        assert ended(gateway, ask(gateway, "3")).state is RequestState.COMPLETED
        agent.broken["inspect"] = OSError("blind")
        timeouts.until(lambda: gateway.status().managed_agent_connectivity == "unavailable")
        assert "blind" in gateway.status().detail
        agent.broken.clear()
        timeouts.until(lambda: gateway.status().request_admission == "open")


@pytest.mark.parametrize(
    "text",
    ["a\0b", "\ud800", "\x1b[2J\x07", "\u2028", "\ufffe\uffff", "x" * (ANSWER_CHARS_MAX + 1)],
)
def test_any_answer_of_an_agent_is_kept_and_blocks_nothing(
    desk: Desk, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = ScriptedAgent()
    gateway = desk.gateway(agent)
    with working(gateway):
        with monkeypatch.context() as patched:
            patched.setattr(
                agent,
                "answer",
                lambda *_: Answer(text=text, source="output", facts={"said": text[:10]}),
            )
            done = ended(gateway, ask(gateway))
            patched.setattr(
                agent,
                "answer",
                lambda *_: Answer(code="agent_failed", detail=f"it said {text[:10]}"),
            )
            failed = ended(gateway, ask(gateway))
        assert ended(gateway, ask(gateway)).state is RequestState.COMPLETED
    assert done.result is not None and done.state is RequestState.COMPLETED
    assert done.result["text"] == text[-ANSWER_CHARS_MAX:].encode("utf-8", "replace").decode()
    assert failed.error_code == "agent_failed"


def test_a_busy_surface_is_waited_for(desk: Desk) -> None:
    agent = ScriptedAgent()
    agent.state = AgentState.WORKING
    gateway = desk.gateway(agent)
    request = ask(gateway)
    with working(gateway):
        until_idle(gateway)
        assert gateway.queue.get(request.request_id).state is RequestState.ACCEPTED
        assert gateway.status().terminal_surface_eligibility == "not_ready"
        agent.state = AgentState.READY
        assert ended(gateway, request).state is RequestState.COMPLETED


def test_stopping_gives_up_what_runs_and_says_so(desk: Desk) -> None:
    agent = ScriptedAgent(instant=False)
    gateway = desk.gateway(agent)
    with working(gateway):
        request = ask(gateway, "long")
        waiting = ask(gateway, "waits")
        assert agent.began.wait(PATIENCE_S)
    gateway.detach()
    done = gateway.queue.get(request.request_id)
    assert (done.error_code, done.receipt) == ("interrupted_by_restart", Receipt.DELIVERED)
    assert gateway.queue.get(waiting.request_id).state is RequestState.ACCEPTED


def test_an_end_is_stored_however_long_the_store_is_away(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = ScriptedAgent()
    gateway = desk.gateway(agent)
    real, failures = gateway.complete, [1, 2]

    def away(request: QueueRequest, result: dict[str, object], receipt: Receipt) -> QueueRequest:
        if failures:
            failures.pop()
            if not failures:
                real(request, result, receipt)
            raise StoreUnavailable("away", outcome="unknown")
        return real(request, result, receipt)

    monkeypatch.setattr(gateway, "complete", away)
    with working(gateway):
        first, second = ask(gateway, "1"), ask(gateway, "2")
        assert ended(gateway, first).state is RequestState.COMPLETED
        assert ended(gateway, second).state is RequestState.COMPLETED
    assert agent.received == [("one", "1"), ("one", "2")]


def unanswered(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, name: str, *, skip: int = 0
) -> None:
    """Let a verb be committed once, and its answer be lost."""
    real, left = getattr(gateway, name), [None] * (skip + 1)

    def lost(*words: object, **how: object) -> object:
        done = real(*words, **how)
        if left and done is not None and not (left.pop() is None and left):
            raise StoreUnavailable("away", outcome="unknown")
        return done

    monkeypatch.setattr(gateway, name, lost)


def test_a_claim_whose_answer_was_lost_does_not_keep_the_slot(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = ScriptedAgent()
    gateway = desk.gateway(agent)
    first, second = ask(gateway, "1"), ask(gateway, "2")
    unanswered(gateway, monkeypatch, "claim")
    with working(gateway):
        assert [ended(gateway, one).state for one in (first, second)] == [
            RequestState.COMPLETED
        ] * 2
    assert agent.received == [("one", "1"), ("one", "2")]
    head = gateway.queue.head()
    assert (head.accepted, head.running, head.slot) == (0, 0, None)


@pytest.mark.parametrize("skip", [0, 1])
def test_an_interrupt_whose_claim_was_not_answered_is_sent_all_the_same(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, skip: int
) -> None:
    agent = ScriptedAgent()
    gateway = desk.gateway(agent)
    several = [interrupt(gateway) for _ in range(3)]
    unanswered(gateway, monkeypatch, "claim", skip=skip)
    with working(gateway):
        assert {ended(gateway, one).state for one in several} == {RequestState.COMPLETED}
    head = gateway.queue.head()
    assert (head.accepted, head.express, head.running) == (0, 0, 0)


def test_a_decision_that_was_committed_and_not_answered_counts(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = ScriptedAgent()
    gateway = desk.gateway(agent)
    old = ask(gateway, "old")
    agent.instance_id = "two"
    gateway.look()
    change = gateway.queue.change

    def lost(*words: object, **how: object) -> object:
        change(*words, **how)  # type: ignore[arg-type]
        raise StoreUnavailable("away", outcome="unknown")

    with monkeypatch.context() as patched:
        patched.setattr(gateway.queue, "change", lost)
        with pytest.raises(StoreUnavailable):
            gateway.reconcile("replay", epoch=2)
    with working(gateway):
        assert ended(gateway, old).state is RequestState.COMPLETED
    assert agent.received == [("two", "old")]


def test_an_expected_epoch_must_be_the_current_one(desk: Desk) -> None:
    gateway = desk.gateway(ScriptedAgent())
    with raises(Refused, epoch=1, expected_epoch=7):
        ask(gateway, epoch=7)
    assert ask(gateway, epoch=1).epoch == 1


def test_a_retry_is_answered_as_its_first_try_also_when_admission_is_shut(desk: Desk) -> None:
    agent = ScriptedAgent()
    gateway = desk.gateway(agent)
    first = ask(gateway, key="k")
    agent.instance_id = None
    gateway.look()
    assert ask(gateway, key="k") == first
    with pytest.raises(UpstreamUnavailable):
        ask(gateway, key="other")


def test_a_full_queue_refuses(desk: Desk) -> None:
    gateway = desk.gateway(ScriptedAgent())
    for n in range(8):
        ask(gateway, str(n))
    with pytest.raises(Full):
        ask(gateway)


def test_a_refusal_in_a_shared_commit_is_that_of_one_request_alone(desk: Desk) -> None:
    agent = ScriptedAgent()
    gateway = desk.gateway(agent)
    drafts = [draft_of("submit_prompt", {"prompt": str(n)}, agent.check) for n in range(9)]
    answers = gateway.accept([Submission(draft) for draft in drafts])
    assert [type(answer) for answer in answers] == [*[QueueRequest] * 8, Full]


def test_an_interrupt_is_taken_though_the_queue_is_full(desk: Desk) -> None:
    agent = ScriptedAgent(instant=False)
    gateway = desk.gateway(agent)
    running, *_ = [ask(gateway, str(n)) for n in range(8)]
    with working(gateway):
        assert agent.began.wait(PATIENCE_S)
        with pytest.raises(Full):
            ask(gateway)
        assert ended(gateway, interrupt(gateway)).state is RequestState.COMPLETED
        assert ended(gateway, running).error_code == "interrupted"


def test_interrupts_are_bounded_too(desk: Desk) -> None:
    gateway = desk.gateway(ScriptedAgent())
    for _ in range(8):
        interrupt(gateway)
    with pytest.raises(Full):
        interrupt(gateway)


def test_a_long_answer_is_cut_to_its_end() -> None:
    from holdfast.domains.gateway import Answer
    from holdfast.domains.gateway.delivery import result_of

    result = result_of(Answer(text="x" * ANSWER_CHARS_MAX + "end\ud800", source="stdout"), True)
    assert (len(result["text"]), result["truncated"]) == (ANSWER_CHARS_MAX, True)
    assert result["text"].endswith("end?")


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("submit_prompt", {}),
        ("submit_prompt", {"prompt": ""}),
        ("submit_prompt", {"prompt": " \n"}),
        ("submit_prompt", {"prompt": 7}),
        ("submit_prompt", {"prompt": "a", "more": 1}),
        ("submit_prompt", {"prompt": "a\x1b[201~b"}),
        ("submit_prompt", {"prompt": "a\rb"}),
        ("submit_prompt", {"prompt": "a\x00b"}),
        ("submit_prompt", {"prompt": "a\x7fb"}),
        ("submit_prompt", {"prompt": "a\x9bb"}),
        ("submit_prompt", {"prompt": "\ud800"}),
        ("submit_prompt", {"prompt": "x" * (PROMPT_BYTES_MAX + 1)}),
        ("submit_prompt", {"prompt": "unfit"}),
        ("interrupt", {"prompt": "a"}),
        ("reboot", {}),
    ],
)
def test_what_may_not_be_asked(kind: str, payload: dict[str, object]) -> None:
    with pytest.raises(InvalidValue):
        draft_of(kind, payload, ScriptedAgent().check)


@pytest.mark.parametrize(
    "prompt",
    ["a\tb\nc", "$(rm -rf /) `x` \"'", "C-c Escape Enter", "ä 漢字 🙂", "x" * PROMPT_BYTES_MAX],
)
def test_what_may_be_asked(prompt: str) -> None:
    assert draft_of("submit_prompt", {"prompt": prompt}, ScriptedAgent().check).payload == {
        "prompt": prompt
    }


@pytest.mark.parametrize(
    ("manifest", "spec"),
    [
        ({"adapter": {"kind": "tmux"}, "tmux": {"session_name": "s"}}, TmuxSpec(session="s")),
        (
            {"adapter": {"kind": "tmux", "session": "a"}, "tmux": {"session_name": "s"}},
            TmuxSpec(session="a"),
        ),
        (
            {"adapter": {"kind": "command", "argv": ["claude", "-p"]}, "working_directory": "/x"},
            CommandSpec(command=("claude", "-p"), working_directory="/x"),
        ),
        (
            {"adapter": {"kind": "rest", "url": "http://h", "terminal": "t"}},
            RestAdapter(base_url="http://h", terminal_id="t"),
        ),
        (
            {
                "adapter": {"kind": "tmux", "interrupt": "Escape", "quiet_ms": 50},
                "tmux": {"session_name": "s"},
            },
            TmuxSpec(session="s", interrupt="Escape", quiet_ms=50),
        ),
        (
            {
                "adapter": {"kind": "command", "command": ["x"], "timeout_s": 5.0},
                "working_directory": "/x",
            },
            CommandSpec(command=("x",), working_directory="/x", timeout_s=5.0),
        ),
        (
            {
                "adapter": {
                    "kind": "rest",
                    "base_url": "http://h",
                    "terminal_id": "t",
                    "preset": "houmao_server",
                    "paths": {},
                }
            },
            RestAdapter(base_url="http://h", terminal_id="t", preset="houmao_server"),
        ),
        (
            {
                "adapter": {
                    "kind": "managed",
                    "managed_api_base_url": "http://h",
                    "managed_agent_ref": "r",
                }
            },
            ManagedAdapter(managed_api_base_url="http://h", managed_agent_ref="r"),
        ),
    ],
)
def test_the_adapter_comes_from_the_manifest(manifest: dict[str, object], spec: object) -> None:
    assert spec_of_manifest(manifest) == spec


@pytest.mark.parametrize(
    "adapter",
    [
        None,
        {},
        {"kind": "telnet"},
        {"kind": "tmux"},
        {"kind": "command", "argv": "ls"},
        {"kind": "managed", "managed_api_base_url": "http://h"},
        {"kind": "rest", "url": "u", "terminal": "t", "more": 1},
        {"kind": ["tmux"]},
        {"kind": "tmux", "session": "s", "quiet_ms": 0},
        {"kind": "tmux", "session": "s", "interrupt_key": "Enter"},
        {"kind": "command", "argv": ["ls"], "answer_timeout_s": 0},
        {"kind": "command", "argv": ["ls"], "answer_timeout_s": -1},
        {"kind": "command", "argv": ["ls"], "answer_timeout_s": float("nan")},
        {"kind": "command", "argv": ["ls"], "answer_timeout_s": float("inf")},
        {"kind": "command", "argv": ["l\0s"]},
        {"kind": "command", "argv": ["ls"], "working_directory": "/\0"},
        {"kind": "rest", "url": "http://h", "terminal": "t", "timeout_s": -1},
        {"kind": "rest", "url": "http://h", "terminal": "t", "preset": ["cao"]},
        {"kind": "rest", "url": "http://h", "terminal": "t", "preset": {"cao": 1}},
        {
            "kind": "managed",
            "managed_api_base_url": "http://h",
            "managed_agent_ref": "a",
            "timeout_s": 0,
        },
    ],
)
def test_a_manifest_with_a_wrong_adapter_is_refused(adapter: object) -> None:
    with raises(InvalidValue, field="adapter"):
        spec_of_manifest({"adapter": adapter})
    if isinstance(adapter, dict):
        with pytest.raises(InvalidValue):
            spec_of(adapter)


def test_a_damaged_request_is_the_matter_of_its_own_key_alone(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retry with its key failed all requests of the shared commit."""
    gateway = desk.gateway(ScriptedAgent())
    first = ask(gateway, key="mine")
    decode = REQUESTS.decode

    def damaged(key: str, data: bytes) -> QueueRequest:
        if key.endswith(first.request_id):
            raise RecordInvalid(f"requests/{key} is damaged", space="requests", key=key)
        return decode(key, data)

    monkeypatch.setattr(REQUESTS, "decode", damaged)
    drafts = [
        draft_of("submit_prompt", {"prompt": "hello"}, gateway.adapter.check, idempotency_key=key)
        for key in ("mine", "other")
    ]
    again, other = gateway.accept([Submission(draft) for draft in drafts])
    assert isinstance(again, RecordInvalid)
    assert isinstance(other, QueueRequest)
    assert gateway.queue.get(other.request_id).state is RequestState.ACCEPTED
