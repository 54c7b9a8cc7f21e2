"""What the page shows: each thing says why it is so, and everything that needs a person is named
once.
"""

import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest
from msgspec import convert
from msgspec.structs import replace

from holdfast.domains.gateway import GatewayStatus
from holdfast.domains.jobs import JobStatus
from holdfast.kernel.errors import LockTimeout, NotFound
from holdfast.operations.gateways import RequestView
from holdfast.operations.page.agents import agent_census, agent_page, name_of, why_agent
from holdfast.operations.page.gateways import gateway_details, gateway_line
from holdfast.operations.page.jobs import job_details, job_page
from holdfast.operations.page.locks import lock_page, why_lock
from holdfast.operations.page.overview import overview
from holdfast.operations.page.timeline import Stretch, timeline
from holdfast.operations.page.workflows import advice, swap_snapshot, why_swap, why_workflow
from holdfast.primitives.queue import QueueRequest, RequestState
from holdfast.runtime.connection import Holdfast, connect
from holdfast.testing.clock import ManualClock
from tests.harness.timeouts import PATIENCE_S


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def hf(clock: ManualClock) -> Iterator[Holdfast]:
    with connect("memory:", clock=clock) as made:
        yield made


def _overview(hf: Holdfast, *gateways: GatewayStatus) -> Any:
    lines = [gateway_line(status.agent, status) for status in gateways]
    return overview(hf, agent_census(hf), lines, hf.jobs.counts())


def test_an_empty_store_needs_nobody(hf: Holdfast) -> None:
    answer = _overview(hf)
    assert (answer.needs, answer.graph.edges, answer.journal, answer.gateways) == ((), (), (), ())
    assert (answer.agents.total, answer.locks.resources, sum(answer.jobs.values())) == (0, 0, 0)
    assert (answer.store, answer.swap.current, answer.swap.target) == ("memory", None, None)


# --- agents ---


def _publish(hf: Holdfast, name: str, **more: Any) -> Any:
    return hf.agents.publish(
        name, backend="codex_headless", tool="codex", manifest_path="/m", **more
    )


def test_an_agent_is_alive_dead_expired_or_presumed(hf: Holdfast, clock: ManualClock) -> None:
    here = hf.processes.current()
    _publish(hf, "alive", holder=here)
    _publish(hf, "presumed")
    _publish(hf, "dead", holder=replace(here, start_ticks=here.start_ticks + 1))
    _publish(hf, "elsewhere", holder=replace(here, host_id="other"))
    _publish(hf, "expired", lease_s=5)
    clock.advance(10)
    page = agent_page(hf)
    states = {line.name.removeprefix("HOLDFAST-"): line.state for line in page.lines}
    assert states == {
        "alive": "alive",
        "presumed": "presumed",
        "dead": "dead",
        "elsewhere": "unseen",
        "expired": "expired",
    }
    census = agent_census(hf)
    assert census.states == dict.fromkeys(["alive", "presumed", "unseen", "dead", "expired"], 1)
    needs = [need.words.partition(":")[0] for need in _overview(hf).needs]
    assert needs == ["agent dead", "agent expired"]
    dead = why_agent(hf, page.lines[1].agent_id)
    assert (dead.state, "its process is gone" in dead.words[1]) == ("dead", True)
    assert "holdfast agents start dead" in dead.advice[0]


def test_agents_are_found_by_words_and_by_pages(hf: Holdfast) -> None:
    for number in range(5):
        _publish(hf, f"agent-{number}")
    first = agent_page(hf, limit=2)
    rest = agent_page(hf, after=first.next, limit=3)
    assert [line.name[-1] for line in (*first.lines, *rest.lines)] == ["0", "1", "2", "3", "4"]
    last = agent_page(hf, after=rest.next, limit=3)
    assert (last.lines, last.next, first.total) == ((), None, 5)
    assert [line.name[-1] for line in agent_page(hf, words="AGENT-3").lines] == ["3"]


def test_a_damaged_agent_hides_no_other(tmp_path: Path) -> None:
    with connect(f"files:{tmp_path}") as hf:
        _publish(hf, "good")
        bad = _publish(hf, "bad")
        (tmp_path / "live_agents" / bad.agent_id / "record.json").write_text("{")
        assert [line.name for line in agent_page(hf).lines] == ["HOLDFAST-good"]


# --- locks ---


def test_a_lock_names_its_holder_and_the_possible_actions(hf: Holdfast) -> None:
    hf.locks.acquire(["router-1", "router-2"], by="job-1")
    why = why_lock(hf.locks, "router-1")
    assert (why.tone, why.state, [action.verb for action in why.actions]) == (
        "busy",
        "held",
        ["kick"],
    )
    assert why.words[0].startswith("router-1 ← job-1 ← process ")
    assert why.actions[0].by == "job-1"
    for job in ("job-2", "job-3"):
        hf.locks.acquire("router-3", by=job, mode="shared")
    assert why_lock(hf.locks, "router-3").actions[0].by is None
    assert ("taken together with", "router-2") in [(fact.name, fact.text) for fact in why.facts]
    assert (
        "taken together with it: router-2." in why.actions[0].effect
        and "not stopped" in why.actions[0].effect
    )
    free = why_lock(hf.locks, "router-9")
    assert (free.state, free.actions, free.words) == ("free", (), ("Nobody holds router-9.",))
    assert [line.name for line in lock_page(hf.locks, words="ROUTER-2").lines] == ["router-2"]
    assert lock_page(hf.locks, limit=1).next == "router-1"


def test_the_chain_of_a_lock_leads_through_its_worker_and_agent(
    hf: Holdfast, clock: ManualClock
) -> None:
    job = hf.jobs.register_job(prompt="p", agent="claude", agent_session="tmux:claude-a").job_id
    hf.locks.acquire(["router-1", "router-2"], by=job)
    assert hf.locks.explain("router-1").behind == {job: ("no worker, as the job is pending",)}
    hf.jobs.pick_pending("tmux:claude-a")
    assert hf.locks.explain("router-1").behind == {job: ("worker tmux:claude-a",)}
    for name, lease_s in (("gpu", 60), ("expired", 5)):
        _publish(hf, name, session_name="claude-a", lease_s=lease_s)
    clock.advance(10)
    assert hf.locks.explain("router-1").behind == {job: ("worker tmux:claude-a", "agent gpu")}
    assert (
        why_lock(hf.locks, "router-1")
        .words[0]
        .startswith(f"router-1 ← {job} ← worker tmux:claude-a ← agent gpu ← process ")
    )


def test_a_part_of_a_job_has_the_jobs_worker(hf: Holdfast) -> None:
    job = hf.jobs.register_job(prompt="p", agent="codex", agent_session="bench").job_id
    hf.jobs.pick_pending("bench")
    for by in (f"{job}/left", "no such", "a b / c", "x" * 200):
        hf.locks.acquire("r", by=by, mode="shared")
    assert hf.locks.explain("r").behind == {f"{job}/left": ("worker bench",)}


def test_a_damaged_job_hides_no_chain(tmp_path: Path) -> None:
    with connect(f"files:{tmp_path}") as hf:
        job = hf.jobs.register_job(prompt="p", agent="codex", agent_session="bench").job_id
        hf.locks.acquire("r", by=job)
        (tmp_path / "jobs" / f"{job}.json").write_text("{")
        assert (hf.locks.explain("r").behind, hf.locks.explain("r").status.holds[0].by) == ({}, job)


def _journal(
    hf: Holdfast, clock: ManualClock, entries: Sequence[tuple[float, str, dict[str, Any]]]
) -> None:
    """Journal events of resource `r`, each so many seconds after the beginning."""
    at = 0.0
    for second, kind, data in entries:
        clock.advance(second - at)
        at = second
        hf.store.transact(
            methodcaller("append", actor="t", kind=kind, subject="r", data=data), scope=[]
        )


def test_the_timeline_is_put_together_from_journal_and_table(
    hf: Holdfast, clock: ManualClock
) -> None:
    begun = clock.now()
    reported: list[tuple[float, str, dict[str, Any]]] = [
        (1, "lock.waiting", {"by": "b", "mode": "exclusive", "held_by": ["a"]}),
        (5, "lock.granted", {"by": "b", "mode": "exclusive", "waited_s": 4}),
        (6, "lock.waiting", {"by": "c", "mode": "exclusive", "held_by": ["b"]}),
        (7, "lock.timed_out", {"by": "c"}),
        (9, "lock.holder_died", {"by": "b"}),
    ]
    _journal(hf, clock, reported)
    hf.locks.acquire("r", by="d")
    clock.advance(1)
    found = timeline(hf.store, hf.locks)

    def stretch(
        job: str, what: str, begin: float, end: float | None, how: str = "", before: bool = False
    ) -> Stretch:
        ended = None if end is None else begun + timedelta(seconds=end)
        return Stretch(
            resource="r",
            job=job,
            what=what,  # type: ignore[arg-type]
            begin=begun + timedelta(seconds=begin),
            end=ended,
            how=how,
            began_before=before,
        )

    assert sorted(found.stretches, key=lambda one: (one.begin, one.what)) == [
        stretch("a", "hold", 1, 5, "released", before=True),
        stretch("b", "wait", 1, 5, "granted"),
        stretch("b", "hold", 5, 9, "died"),
        stretch("c", "wait", 6, 7, "timed out"),
        stretch("d", "hold", 9, None),
    ]
    assert (found.since, found.now, found.left_out) == (
        begun + timedelta(seconds=1),
        begun + timedelta(seconds=10),
        0,
    )


def _brief(
    stretches: Sequence[Stretch], begun: datetime
) -> list[tuple[str, str, float, float | None]]:
    return [
        (
            one.job,
            one.what,
            (one.begin - begun).total_seconds(),
            None if one.end is None else (one.end - begun).total_seconds(),
        )
        for one in stretches
    ]


def test_a_wait_that_was_reported_late_began_so_long_before(
    hf: Holdfast, clock: ManualClock
) -> None:
    begun = clock.now()
    reported = {"by": "b", "mode": "exclusive", "held_by": ["a"], "waited_s": 1.5}
    _journal(
        hf,
        clock,
        [
            (3, "lock.waiting", reported),
            (5, "lock.granted", {"by": "b", "mode": "exclusive", "waited_s": 3.5}),
            (6, "lock.holder_died", {"by": "b"}),
        ],
    )
    assert _brief(timeline(hf.store, hf.locks).stretches, begun) == [
        ("b", "wait", 1.5, 5),
        ("a", "hold", 3, 5),
        ("b", "hold", 5, 6),
    ]


@pytest.mark.parametrize("kind", ["lock.waiting", "lock.timed_out"])
def test_a_hold_ends_before_an_entry_that_names_other_holders(
    hf: Holdfast, clock: ManualClock, kind: str
) -> None:
    """The short waits after it, and their grants, are not in the journal."""
    begun = clock.now()
    granted = {"mode": "exclusive", "waited_s": 2}
    _journal(
        hf,
        clock,
        [
            (1, "lock.granted", {"by": "b", **granted}),
            (2, "lock.waiting", {"by": "x", "mode": "exclusive", "held_by": ["b"]}),
            (50, kind, {"by": "d", "mode": "exclusive", "held_by": ["c"]}),
            (90, "lock.granted", {"by": "e", **granted}),
            (91, "lock.holder_died", {"by": "e"}),
        ],
    )
    holds = [one for one in timeline(hf.store, hf.locks).stretches if one.what == "hold"]
    assert _brief(holds, begun) == [
        ("b", "hold", 1, 2),
        ("c", "hold", 50, 90),
        ("e", "hold", 90, 91),
    ]


@pytest.mark.parametrize(
    "data",
    [
        # The holders of all names of the set, of which a waiter that shares waits for some.
        {"by": "d", "mode": "shared", "held_by": ["c"], "names": ["r", "s"]},
        # A list that was cut.
        {"by": "d", "mode": "exclusive", "held_by": [f"a{at}" for at in range(16)]},
        # A part of a job does not wait for the job.
        {"by": "b/1", "mode": "exclusive", "held_by": ["c"]},
        {"by": "d", "mode": "exclusive", "held_by": []},
    ],
)
def test_a_hold_goes_on_where_an_entry_need_not_name_it(
    hf: Holdfast, clock: ManualClock, data: dict[str, Any]
) -> None:
    begun = clock.now()
    entries = [
        (1, "lock.granted", {"by": "b", "mode": "shared", "waited_s": 2}),
        (50, "lock.waiting", data),
        (90, "lock.holder_died", {"by": "b"}),
    ]
    _journal(hf, clock, entries)
    found = _brief(timeline(hf.store, hf.locks).stretches, begun)
    assert ("b", "hold", 1, 90) in found


def test_a_timeline_has_only_so_many_lanes(hf: Holdfast) -> None:
    for number in range(50):
        hf.locks.acquire(f"r-{number:02}", by="a")
    for number in range(50):
        hf.store.transact(
            lambda tx, n=number: tx.append(  # type: ignore[misc]
                actor="t",
                kind="lock.waiting",
                subject=f"r-{n:02}",
                data={"by": "b", "held_by": ["a"]},
            ),
            scope=[],
        )
    found = timeline(hf.store, hf.locks)
    assert (len({one.resource for one in found.stretches}), found.left_out) == (40, 10)


# --- jobs ---


def _job(hf: Holdfast, prompt: str = "do it", **more: Any) -> Any:
    return hf.jobs.register_job(prompt, agent="claude", agent_session="tmux:a", **more)


@pytest.mark.parametrize(
    ("status", "verbs"),
    [
        (None, ["cancel_job"]),
        (JobStatus.RUNNING, ["requeue_job", "cancel_job"]),
        (JobStatus.COMPLETED, []),
        (JobStatus.ERROR, ["retry_job", "cancel_job"]),
        (JobStatus.CANCELLED, ["retry_job"]),
    ],
)
def test_a_job_offers_what_may_be_done_with_it(
    hf: Holdfast, status: JobStatus | None, verbs: list[str]
) -> None:
    job = _job(hf)
    if status is not None:
        job = hf.jobs.pick_pending("tmux:a")
    if status not in (None, JobStatus.RUNNING):
        job = hf.jobs.update_status(job.job_id, status, token=job.token)
    picture = job_details(hf, job.job_id)
    assert [action.verb for action in picture.why.actions] == verbs
    assert [action.token for action in picture.why.actions if action.verb == "requeue_job"] == [
        job.token
    ] * verbs.count("requeue_job")


def test_the_events_of_a_job_are_shown_without_secrets(hf: Holdfast) -> None:
    job = _job(hf, "sort it")
    assert job.auth_token
    hf.jobs.pick_pending("tmux:a")
    hf.job_events.publish(
        job.job_id, "progress", detail="half", data={"password": "hunter2", "files": 3}
    )
    hf.job_events.publish(job.job_id, "permission_required", detail="may I?")
    picture = job_details(hf, job.job_id)
    assert [(one.seq, one.event, one.detail) for one in picture.progress] == [
        (1, "progress", "half"),
        (2, "permission_required", "may I?"),
    ]
    assert picture.progress[0].data == {"password": "[redacted]", "files": 3}
    assert picture.why.state == "waits for a permission"
    assert "auth_token" not in str(picture) and job.auth_token not in str(picture)
    assert [need.kind for need in _overview(hf).needs] == ["job"]


def _fails(hf: Holdfast, prompt: str = "do it", code: str | None = None) -> Any:
    job = _job(hf, prompt)
    picked = hf.jobs.pick_pending("tmux:a")
    assert picked is not None
    return hf.jobs.update_status(
        job.job_id, JobStatus.ERROR, token=picked.token, error="it burns", error_code=code
    )


def test_a_job_that_ended_in_error_is_pointed_at_until_it_is_given_up(
    hf: Holdfast, clock: ManualClock
) -> None:
    """It was forgotten after an hour."""
    job = _fails(hf, code="burnt_down")
    clock.advance(90 * 24 * 3600)
    assert [need.words for need in _overview(hf).needs] == [
        f"job {job.job_id} ended in error, burnt down: do it"
    ]
    given_up = hf.jobs.cancel(job.job_id, reason="seen")
    assert (given_up.status, given_up.error, given_up.finished_at) == (
        JobStatus.CANCELLED,
        "it burns",
        job.finished_at,
    )
    assert _overview(hf).needs == ()
    logged = hf.store.journal(limit=1, reverse=True).entries[0]
    assert (logged.data["from"], logged.data["to"], logged.data["why"], logged.data["reason"]) == (
        *("error", "cancelled"),
        *("given_up", "seen"),
    )


def test_many_failed_jobs_are_counted_and_the_last_are_named(
    hf: Holdfast, clock: ManualClock
) -> None:
    """Three of 22 were shown, and nothing was said of the others."""
    slow = _job(hf, "slow")
    picked = hf.jobs.pick_pending("tmux:a")
    assert picked is not None
    for number in range(21):
        clock.advance(60)
        _fails(hf, f"number {number}")
    clock.advance(60)
    hf.jobs.update_status(slow.job_id, JobStatus.ERROR, token=picked.token)
    needs = _overview(hf).needs
    assert [need.words.rpartition(" ")[2] for need in needs[:-1]] == [
        "slow",
        "20",
        "19",
        "18",
        "17",
    ]
    assert (needs[-1].kind, needs[-1].name, needs[-1].count) == ("jobs", "error", 17)
    assert needs[-1].words == "17 more jobs ended in error: show all 22"
    assert sum(need.count for need in needs) == 22


def test_many_dead_agents_are_counted_and_some_are_named(hf: Holdfast, clock: ManualClock) -> None:
    for number in range(8):
        _publish(hf, f"agent-{number}", lease_s=5)
    clock.advance(10)
    needs = _overview(hf).needs
    assert [need.kind for need in needs] == ["agent"] * 5 + ["agents"]
    assert (needs[-1].count, needs[-1].words) == (3, "3 more agents are not alive: show all")


def test_journal_entries_name_their_agents(hf: Holdfast, clock: ManualClock) -> None:
    """An id was all there was to read."""
    agent = _publish(hf, "gpu", lease_s=60)
    hf.agents.refresh(agent.agent_id, agent.generation_id)
    hf.agents.attach_gateway(agent.agent_id, agent.generation_id, None)
    clock.advance(100_000)
    hf.agents.cleanup(grace_s=0, tmux_check=False)
    entries = hf.store.journal(limit=20).entries
    assert [entry.kind for entry in entries] == [
        f"agent.{it}" for it in ("published", "refreshed", "gateway_changed", "cleaned")
    ]
    assert {entry.data["agent_name"] for entry in entries} == {"HOLDFAST-gpu"}
    # As an older program wrote it.
    other = _publish(hf, "cpu")
    hf.store.transact(
        lambda tx: tx.append(actor="t", kind="agent.refreshed", subject=other.agent_id, data={}),
        scope=[],
    )
    assert _overview(hf).names == {other.agent_id: "cpu"}


def test_a_gateway_that_is_kept_under_an_id_has_the_name_of_its_agent(hf: Holdfast) -> None:
    agent = _publish(hf, "reviewer", agent_id="0123456789abcdef")
    assert name_of(hf.agents, agent.agent_id) == "reviewer"
    assert name_of(hf.agents, "reviewer") is None and name_of(hf.agents, "nobody") is None
    # The word is an id of one and the name of another: for gateways it may be either.
    _publish(hf, "0123456789abcdef")
    assert name_of(hf.agents, agent.agent_id) is None
    line = gateway_line(agent.agent_id, None, silent=True, name="reviewer")
    census = agent_census(hf)
    needs = overview(hf, census, [line], hf.jobs.counts()).needs
    assert [need.words.partition(":")[0] for need in needs] == ["gateway of reviewer"]
    assert gateway_details(line, None, []).why.title == "gateway of reviewer"


def test_jobs_are_found_by_words_status_and_pages(hf: Holdfast) -> None:
    for number in range(5):
        _job(hf, f"number {number}")
    first = job_page(hf, hf.jobs.counts(), limit=2)
    rest = job_page(hf, {}, before=first.next, limit=9)
    assert [line.prompt[-1] for line in (*first.lines, *rest.lines)] == ["4", "3", "2", "1", "0"]
    assert (rest.next, first.counts["pending"]) == (None, 5)
    assert [line.prompt for line in job_page(hf, {}, words="NUMBER 3").lines] == ["number 3"]
    assert job_page(hf, {}, status="running").lines == ()


# --- workflows ---


def test_it_says_when_it_is_unknown_what_is_loaded(hf: Holdfast) -> None:
    hf.workflows.swap("qwen-7b").__enter__().fail("exit status 9", exit_status=9)
    picture, swap, answer = swap_snapshot(hf.workflows), why_swap(hf.workflows), _overview(hf)
    assert (
        picture.current is None
        and "the load of qwen-7b" in picture.unknown
        and picture.unknown_at is not None
    )
    assert (swap.state, swap.tone, swap.title) == ("unknown", "bad", "model unknown")
    assert [(need.kind, need.tone) for need in answer.needs] == [("swap", "bad")]


def test_a_swap_names_what_it_waits_for(hf: Holdfast) -> None:
    # Work of this process itself would be a deadlock.
    hf.workflows.register("tuning", "llama-70b", owner=hf.processes.of(os.getppid()))
    assert (why_swap(hf.workflows).state, why_workflow(hf.workflows, "tuning").advice) == (
        "no swap",
        ("nothing to do",),
    )
    # Another program's swap asks in its own time.
    assert "was not yet" in advice(
        replace(hf.workflows.get("tuning"), preemptible=True), in_the_way=True
    )
    seen: list[Any] = []

    def look(_: object) -> None:
        seen.append(
            (
                swap_snapshot(hf.workflows),
                why_swap(hf.workflows),
                why_workflow(hf.workflows, "tuning"),
                _overview(hf),
            )
        )
        os.eventfd_write(enough, 1)

    enough = os.eventfd(0, os.EFD_NONBLOCK)
    with pytest.raises(LockTimeout):
        with hf.workflows.swap("qwen-7b", timeout_s=PATIENCE_S, stop_fd=enough, on_wait=look):
            pass
    os.close(enough)
    picture, swap, workflow, reported = seen[0]
    assert (picture.target, picture.waits_for) == ("qwen-7b", ("tuning",))
    assert swap.state == "waits for work to end"
    assert "cannot be asked to yield" in workflow.advice[0]
    assert [(need.kind, need.words) for need in reported.needs] == [
        ("swap", "the swap to qwen-7b waits for tuning")
    ]
    with pytest.raises(NotFound):
        why_workflow(hf.workflows, "nosuch")


# --- gateways ---

STATUS = GatewayStatus(
    agent="gpu",
    managed_agent_connectivity="connected",
    managed_agent_recovery="idle",
    request_admission="open",
    terminal_surface_eligibility="ready",
    active_execution="idle",
    queue_depth=2,
    backend="tmux",
    managed_agent_instance_epoch=2,
)


@pytest.mark.parametrize(
    ("status", "state", "tone"),
    [
        (STATUS, "open", "good"),
        (replace(STATUS, active_execution="running"), "running", "busy"),
        (replace(STATUS, request_admission="blocked_unavailable"), "blocked: no agent", "bad"),
        (replace(STATUS, request_admission="blocked_reconciliation"), "blocked: decide", "bad"),
        (replace(STATUS, gateway_health="not_attached"), "not attached", "bad"),
        (replace(STATUS, gateway_health="not_attached", queue_depth=0), "not attached", "idle"),
        (None, "never served", "idle"),
    ],
)
def test_a_gateway_says_why_nothing_moves(
    hf: Holdfast, status: GatewayStatus | None, state: str, tone: str
) -> None:
    line = gateway_line("gpu", status)
    assert (line.state, line.tone) == (state, tone)
    assert (_overview(hf, status).needs != ()) == (tone == "bad") if status else True


def test_a_blocked_gateway_offers_a_decision_about_what_is_old(hf: Holdfast) -> None:
    blocked = replace(STATUS, request_admission="blocked_reconciliation")
    request = QueueRequest(
        request_id="r1",
        queue="gpu",
        kind="submit_prompt",
        payload={"prompt": "hi"},
        arrival=1,
        epoch=1,
        accepted_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    later = replace(request, request_id="r2", epoch=2, state=RequestState.COMPLETED)
    requests = [convert(one, RequestView, from_attributes=True) for one in (request, later)]
    picture = gateway_details(gateway_line("gpu", blocked), blocked, requests)
    assert [(action.verb, action.epoch) for action in picture.why.actions] == [
        ("replay", 2),
        ("discard", 2),
    ]
    assert picture.why.actions[0].effect.startswith("1 request of an earlier instance")
    assert [(one.request_id, one.cancel is None) for one in picture.requests] == [
        ("r2", True),
        ("r1", False),
    ]
    assert gateway_details(gateway_line("gpu", STATUS), STATUS, requests).why.actions == ()
    silent = gateway_line("gpu", None, silent=True)
    assert (silent.state, silent.tone) == ("does not answer", "bad")
