"""Metrics: read by Prometheus's own parser, on every store, with parts of the world away."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from litestar import Litestar
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

import holdfast
from holdfast.domains.gateway import AgentState, GatewayStatus
from holdfast.domains.gateway.state import Question
from holdfast.domains.jobs import JobStatus
from holdfast.domains.workflows import SwapMarker
from holdfast.domains.workflows.wire import ONLY, SWAP_MARKER
from holdfast.kernel.limits import METRICS_RESOURCES_MAX
from holdfast.kernel.store import Tx
from holdfast.primitives.locks.statistics import OTHERS
from holdfast.runtime.connection import Holdfast
from holdfast.runtime.metrics import families, sources
from holdfast.runtime.metrics.sources import Metrics
from holdfast.stores.durations import OPERATIONS
from holdfast.surfaces.http.http_server import HttpServer, bound
from holdfast.surfaces.http.server.application import status_routes
from tests.harness.stores import store_url
from tests.harness.timeouts import PATIENCE_S, until
from tests.hazards.gateway_process import AGENT, GatewayProcess
from tests.surfaces.command import CommandLine

Samples = dict[tuple[str, ...], float]


@pytest.fixture(params=["memory", "sqlite", "files", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOLDFAST_GATEWAY_ROOT", str(tmp_path / "gateways"))
    return store_url(request, tmp_path)


@pytest.fixture
def hf(url: str) -> Iterator[Holdfast]:
    with holdfast.connect(url) as connected:
        yield connected


@pytest.fixture
def embedded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Holdfast]:
    """A connection to SQLite, where the store makes no difference."""
    monkeypatch.setenv("HOLDFAST_GATEWAY_ROOT", str(tmp_path / "gateways"))
    with holdfast.connect(f"sqlite:{tmp_path}/store.sqlite") as connected:
        yield connected


def read(text: str) -> Samples:
    """The samples by name and the values of their labels, but for a histogram's."""
    return {
        (sample.name, *(value for label, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def samples(hf: Holdfast) -> Samples:
    return read(Metrics(hf, version="1").text())


def all_parts(found: Samples) -> dict[str, float]:
    return {key[1]: value for key, value in found.items() if key[0] == "holdfast_metrics_part_up"}


def register(hf: Holdfast, number: int = 1) -> list[str]:
    return [
        hf.jobs.register_job("x", agent="a", agent_session="tmux:a").job_id for _ in range(number)
    ]


def test_an_empty_store_has_every_part_and_nothing_in_it(hf: Holdfast) -> None:
    found = samples(hf)
    parts = all_parts(found)
    assert set(parts.values()) == {1.0} and len(parts) == 9
    assert (found["holdfast_store_up",], found["holdfast_store_made",]) == (1, 1)
    assert found["holdfast_info", hf.store.namespace, hf.store.kind, "1"] == 1
    assert {found["holdfast_jobs", status.value] for status in JobStatus} == {0}
    assert found["holdfast_swap_age_seconds",] == 0


def test_a_swap_is_shown_while_it_lives(hf: Holdfast) -> None:
    with hf.workflows.swap("llama"):
        assert samples(hf)["holdfast_swap_age_seconds",] > 0
    assert samples(hf)["holdfast_swap_age_seconds",] == 0
    dead = replace(hf.processes.current(), start_ticks=1)
    marker = SwapMarker(recipe="qwen", holder=dead, begun_at=hf.store.now(), token=1)
    hf.store.transact(lambda tx: tx.put(SWAP_MARKER, ONLY, marker), scope=[SWAP_MARKER])
    assert samples(hf)["holdfast_swap_age_seconds",] == 0


def test_names_are_as_prometheus_wants_them(hf: Holdfast) -> None:
    with hf.locks.hold("router-1", by="job"):
        text = Metrics(hf, version="1").text()
    families = list(text_string_to_metric_families(text))
    assert families
    for family in families:
        assert family.name.startswith("holdfast_") and family.documentation.endswith("."), (
            family.name
        )
        assert family.type in ("gauge", "counter", "histogram"), family.name
        assert family.type != "histogram" or family.name.endswith("_seconds")
        assert all(
            sample.name.endswith("_total") for sample in family.samples if family.type == "counter"
        )


def test_what_locks_go_through_is_counted(hf: Holdfast) -> None:
    with hf.locks.hold("router-1", by="one"):
        assert hf.locks.try_acquire("router-1", by="two") is None
        found = samples(hf)
        assert found["holdfast_lock_holders", "router-1"] == 1
    assert hf.locks.acquire("router-1", by="two").release()
    found = samples(hf)
    assert found["holdfast_lock_grants_total", "router-1"] == 2
    assert found["holdfast_lock_hold_seconds_count", "router-1"] == 2
    assert ("holdfast_lock_holders", "router-1") not in found


def test_jobs_are_counted_by_status(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = register(hf, 6)
    for _ in range(4):
        assert hf.jobs.pick_pending("tmux:a") is not None
    for job_id, status in zip(
        ids, (JobStatus.COMPLETED, JobStatus.ERROR, JobStatus.CANCELLED), strict=False
    ):
        hf.jobs.update_status(job_id, status)
    found = samples(hf)
    counts = {status: found["holdfast_jobs", status.value] for status in JobStatus}
    assert counts == dict.fromkeys(JobStatus, 1) | {JobStatus.PENDING: 2}
    hf.job_events.publish(ids[3], "progress")
    found = samples(hf)
    assert (found["holdfast_job_events_unsent",], found["holdfast_job_events_sendable",]) == (1, 0)
    monkeypatch.setenv("MQTT_BROKER", "broker.lab")
    assert samples(hf)["holdfast_job_events_sendable",] == 1


def test_a_job_that_waits_for_a_permission_is_counted_with_its_age(hf: Holdfast) -> None:
    assert (
        samples(hf)["holdfast_jobs_waiting",],
        samples(hf)["holdfast_job_waiting_age_seconds",],
    ) == (0, 0)
    [job_id] = register(hf, 1)
    assert hf.jobs.pick_pending("tmux:a") is not None
    asked = hf.job_events.publish(job_id, "permission_required").event
    found = samples(hf)
    assert found["holdfast_jobs_waiting",] == 1
    assert 0 <= found["holdfast_job_waiting_age_seconds",] < PATIENCE_S
    hf.job_events.answer(job_id, asked.seq, "allow", by="boss")
    assert samples(hf)["holdfast_jobs_waiting",] == 0


def test_states_and_questions_of_agents_are_counted() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    question = Question(question_id="q", kind="permission", subject="s", asked_at=at)

    def reading(state: AgentState, up: bool, *asked: Question) -> families.GatewayReading:
        status = GatewayStatus(
            agent=state.value,
            managed_agent_connectivity="connected",
            managed_agent_recovery="idle",
            request_admission="open",
            terminal_surface_eligibility="ready",
            active_execution="idle",
            queue_depth=0,
            backend="tmux",
            managed_agent_instance_epoch=1,
            agent_state=state,
            questions=asked,
        )
        return families.GatewayReading(state.value, up, status)

    later = replace(question, question_id="r", asked_at=at + timedelta(seconds=30))
    readings = [
        reading(AgentState.ASKING, True, later, question),
        reading(AgentState.READY, True),
        reading(AgentState.DRAFT, False, question),
    ]
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in families.of_gateways(readings, 0, None, at + timedelta(seconds=90))
        for sample in family.samples
    }
    counts = {state: found["holdfast_agent_states", state.value] for state in AgentState}
    assert counts == dict.fromkeys(AgentState, 0) | {AgentState.ASKING: 1, AgentState.READY: 1}
    assert found["holdfast_agent_questions",] == 2
    assert found["holdfast_agent_question_age_seconds",] == 90


def test_counting_jobs_reads_none_of_them(
    embedded: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.domains.jobs.records import JOBS

    register(embedded, 3)
    with monkeypatch.context() as patched:
        patched.setattr(JOBS, "decode", lambda *_: pytest.fail("a job was read"))
        assert embedded.jobs.counts()[JobStatus.PENDING] == 3


def test_leases_say_how_long_they_are_still_believed(hf: Holdfast, tmp_path: Path) -> None:
    manifest = str(tmp_path / "m.json")
    agent = hf.agents.publish(
        "gpu", backend="command", tool="t", manifest_path=manifest, lease_s=600
    )
    hf.workflows.register("tuning", "llama", ttl_s=300)
    found = samples(hf)
    left = found["holdfast_agent_lease_remaining_seconds", agent.agent_id, agent.agent_name]
    age = found["holdfast_agent_lease_age_seconds", agent.agent_id, agent.agent_name]
    assert 600 - PATIENCE_S < left <= 600 and 0 <= age < PATIENCE_S
    left = found["holdfast_workflow_lease_remaining_seconds", "llama", "tuning"]
    age = found["holdfast_workflow_lease_age_seconds", "llama", "tuning"]
    assert 300 - PATIENCE_S < left <= 300 and 0 <= age < PATIENCE_S
    assert found["holdfast_agents", "fresh"] == 1 and found["holdfast_workflows", "live"] == 1


def test_a_lease_that_is_over_is_less_than_nothing_and_nothing_is_swept_by_looking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.testing.clock import ManualClock

    monkeypatch.setenv("HOLDFAST_GATEWAY_ROOT", str(tmp_path / "gateways"))
    clock = ManualClock()
    with holdfast.connect(f"sqlite:{tmp_path}/store.sqlite", clock=clock) as hf:
        agent = hf.agents.publish(
            "gpu", backend="command", tool="t", manifest_path=str(tmp_path / "m"), lease_s=60
        )
        hf.workflows.register("tuning", "llama", ttl_s=60)
        clock.advance(100)
        before = hf.log.tail(100)
        found = samples(hf)
        assert (
            found["holdfast_agent_lease_remaining_seconds", agent.agent_id, agent.agent_name] == -40
        )
        assert found["holdfast_workflow_lease_remaining_seconds", "llama", "tuning"] == -40
        assert found["holdfast_agents", "expired"] == 1
        assert hf.log.tail(100) == before
        assert found["holdfast_journal_oldest_entry_age_seconds",] == 100


def test_an_audit_log_that_lags_is_reported_until_it_has_caught_up(hf: Holdfast) -> None:
    register(hf, 3)
    # Of others' entries the audit log does not tell, so it is not behind on them.
    hf.workflows.register("tuning", "llama")
    if hf.job_log is None:
        assert ("holdfast_journal_lag_entries", "job_log") not in samples(hf)
        return
    assert samples(hf)["holdfast_journal_lag_entries", "job_log"] == 3
    assert samples(hf)["holdfast_journal_lag_seconds", "job_log"] >= 0
    assert hf.job_log.catch_up(hf.log, hf.jobs.peek) is None
    found = samples(hf)
    assert (
        found["holdfast_journal_lag_entries", "job_log"]
        == 0
        == found["holdfast_journal_lag_seconds", "job_log"]
    )


def test_a_swap_log_that_cannot_be_written_is_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_GATEWAY_ROOT", str(tmp_path / "gateways"))
    with holdfast.connect(f"files:{tmp_path}/state") as hf:
        (tmp_path / "state" / "swap_log.jsonl").mkdir(parents=True)
        with hf.workflows.swap("llama"):
            pass
        assert samples(hf)["holdfast_journal_lag_entries", "swap_log"] >= 2
        (tmp_path / "state" / "swap_log.jsonl").rmdir()
        with hf.workflows.swap("qwen"):
            pass
        assert samples(hf)["holdfast_journal_lag_entries", "swap_log"] == 0


def test_the_time_of_transactions_is_measured_where_somebody_asked_and_nowhere_else(
    hf: Holdfast,
) -> None:
    assert not set(OPERATIONS) & set(vars(hf.store))
    metrics = Metrics(hf, version="1")
    before = read(metrics.text())["holdfast_store_transaction_seconds_count", "transact"]
    register(hf, 5)
    after = read(metrics.text())
    # Its own probe is one more.
    assert after["holdfast_store_transaction_seconds_count", "transact"] == before + 5 + 1
    assert after["holdfast_store_probe_seconds",] > 0
    assert Metrics(hf, version="1") is not metrics
    assert samples(hf)["holdfast_store_transaction_seconds_count", "transact"] == before + 5 + 2


def test_a_failed_transaction_is_measured_too(embedded: Holdfast) -> None:
    metrics = Metrics(embedded, version="1")
    with pytest.raises(ZeroDivisionError):
        embedded.store.transact(lambda tx: 1 // 0, scope=[])
    assert read(metrics.text())["holdfast_store_transaction_seconds_count", "transact"] == 2


def test_many_resources_share_one_name_and_no_counter_ever_goes_back(embedded: Holdfast) -> None:
    metrics = Metrics(embedded, version="1")
    for number in range(METRICS_RESOURCES_MAX + 20):
        embedded.locks.acquire(f"r{number:04d}", by="job").release()
    first = read(metrics.text())
    named = {key[1] for key in first if key[0] == "holdfast_lock_grants_total"}
    assert len(named) == METRICS_RESOURCES_MAX + 1
    assert first["holdfast_lock_grants_total", OTHERS] == 20
    late = next(f"r{n:04d}" for n in range(METRICS_RESOURCES_MAX + 20) if f"r{n:04d}" not in named)
    for _ in range(50):
        embedded.locks.acquire(late, by="job").release()
    second = read(metrics.text())
    assert {key[1] for key in second if key[0] == "holdfast_lock_grants_total"} == named
    assert second["holdfast_lock_grants_total", OTHERS] == 70
    assert all(second[key] >= value for key, value in first.items() if key[0].endswith("_total"))


def test_a_store_that_is_away_is_a_value(embedded: Holdfast) -> None:
    metrics = Metrics(embedded, version="1")
    embedded.store.close()
    found = read(metrics.text())
    assert found["holdfast_store_up",] == 0
    assert all_parts(found) == dict.fromkeys(all_parts(found), 0) | {"store": 1, "gateways": 1}


def test_a_blocking_writer_is_reported_and_does_not_block_reads(
    embedded: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "METRICS_PROBE_S", 0.2)
    register(embedded)
    metrics = Metrics(embedded, version="1")
    # The first look of all makes the tables.
    metrics.text()
    inside, leave = threading.Event(), threading.Event()

    def body(tx: Tx) -> None:
        inside.set()
        leave.wait(PATIENCE_S)

    def occupy() -> None:
        embedded.store.transact(body, scope=[])

    writer = threading.Thread(target=occupy)
    writer.start()
    try:
        assert inside.wait(PATIENCE_S)
        found = read(metrics.text())
    finally:
        leave.set()
        writer.join()
    assert found["holdfast_store_up",] == 0 and found["holdfast_store_probe_seconds",] >= 0.2
    assert set(all_parts(found).values()) == {1}
    assert found["holdfast_jobs", "pending"] == 1


def test_a_damaged_part_hides_no_other(embedded: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.kernel.errors import StoreCorrupt

    def corrupt() -> None:
        raise StoreCorrupt("torn")

    monkeypatch.setattr(embedded.network, "counts", corrupt)
    found = samples(embedded)
    assert all_parts(found) == dict.fromkeys(all_parts(found), 1) | {"registry": 0}
    assert ("holdfast_registry_hosts",) not in found


@pytest.mark.prove
def test_a_gateway_is_asked_and_a_dead_or_stopped_one_is_a_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_GATEWAY_ROOT", str(tmp_path / "gateways"))
    with (
        GatewayProcess(tmp_path) as gateway,
        holdfast.connect(f"sqlite:{tmp_path}/store.sqlite") as hf,
    ):
        gateway.start()
        gateway.client.prompt("long")
        gateway.client.prompt("short")
        with monkeypatch.context() as patient:
            # One that answers has the time for it that a busy machine takes.
            patient.setattr(sources, "METRICS_ASK_S", PATIENCE_S)
            patient.setattr(sources, "_WITHIN_S", PATIENCE_S)
            until(lambda: samples(hf).get(("holdfast_gateway_queue_depth", AGENT, "running")) == 1)
            found = samples(hf)
            assert found["holdfast_gateway_up", AGENT] == 1
            assert found["holdfast_gateway_queue_depth", AGENT, "accepted"] == 1
            assert found["holdfast_gateway_blocked", AGENT, "reconciliation"] == 0
        until(lambda: json.loads((gateway.root / "state.json").read_text())["queue_depth"] == 2)
        assert gateway.process is not None
        os.kill(gateway.process.pid, signal.SIGSTOP)
        os.waitpid(gateway.process.pid, os.WUNTRACED)
        # It ends, though the gateway never answers.
        stopped = samples(hf)
        assert stopped["holdfast_gateway_up", AGENT] == 0 == stopped["holdfast_gateways_unasked",]
        gateway.kill()
        dead = samples(hf)
        assert dead["holdfast_gateway_up", AGENT] == 0
        # What it last wrote down stands, so that nobody takes it for empty.
        assert dead["holdfast_gateway_queue_depth", AGENT, "accepted"] >= 1
        assert all_parts(dead)["gateways"] == 1


def test_a_folder_that_is_no_gateways_is_a_gateway_that_is_down(
    embedded: Holdfast, tmp_path: Path
) -> None:
    (tmp_path / "gateways" / "default" / "old").mkdir(parents=True)
    found = samples(embedded)
    assert found["holdfast_gateway_up", "old"] == 0
    assert not [key for key in found if key[0] == "holdfast_gateway_queue_depth"]


def test_the_route_says_what_it_is(embedded: Holdfast) -> None:
    with served(embedded) as client:
        answer = client.get("/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert read(answer.text)["holdfast_store_up",] == 1
        register(embedded, 2)
        assert read(client.get("/metrics").text)["holdfast_jobs", "pending"] == 2


def test_the_command_prints_the_same_and_makes_no_store(tmp_path: Path) -> None:
    command = CommandLine(tmp_path, HOLDFAST_STORE=f"sqlite:{tmp_path}/none/store.sqlite")
    empty = command("metrics")
    assert empty.status == 0 and not (tmp_path / "none").exists()
    assert (read(empty.out)["holdfast_store_up",], read(empty.out)["holdfast_store_made",]) == (
        0,
        0,
    )
    assert command("jobs", "register", "--prompt", "x", "--agent-session", "tmux:a").status == 0
    ran = command("metrics")
    assert ran.status == 0 and ran.err == ""
    with holdfast.connect(f"sqlite:{tmp_path}/none/store.sqlite") as hf:
        same = samples(hf)
    assert {key for key in read(ran.out) if not key[0].startswith("holdfast_info")} == {
        key for key in same if not key[0].startswith("holdfast_info")
    }


def test_the_command_reports_a_store_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "store.sqlite").write_bytes(b"no database" * 100)
    for url in (
        f"sqlite:{tmp_path}/store.sqlite",
        "postgresql://127.0.0.1:9/none?connect_timeout=2",
    ):
        ran = CommandLine(tmp_path, HOLDFAST_STORE=url)("metrics")
        found = read(ran.out)
        assert (
            ran.status,
            found["holdfast_store_up",],
            found["holdfast_metrics_part_up", "store"],
        ) == (0, 0, 0)
        assert ran.err


def test_the_registrys_text_is_part_of_the_whole(embedded: Holdfast) -> None:
    from holdfast.runtime.metrics.sources import exposition

    with embedded.locks.hold("router-1", by="job"):
        part = read(exposition(embedded.locks, embedded.network))
        all_of_it = samples(embedded)
    assert part and {key: all_of_it.get(key) for key in part} == part


def test_forked_children_begin_with_no_times() -> None:
    from holdfast.stores.durations import Times

    times = Times()
    times.add("read", 0.1)
    ours, theirs = os.pipe()
    if (pid := os.fork()) == 0:
        times.add("read", 0.1)
        os.write(theirs, json.dumps(sum(times.taken()["read"].counts)).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert json.loads(os.read(ours, 100)) == 1
    assert sum(times.taken()["read"].counts) == 1
    os.close(ours)
    os.close(theirs)


def test_a_lag_is_looked_for_no_further_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.primitives import journal

    monkeypatch.setattr(journal, "JOURNAL_LAG_SCAN_MAX", 5)
    with holdfast.connect("memory:") as hf:
        register(hf, 9)
        lag = hf.log.lag("", lambda entry: entry.kind == "job.registered")
        assert lag.entries == 5 and lag.since is not None
        assert hf.store.now() - lag.since < timedelta(minutes=1)
        assert hf.log.lag("", lambda entry: False) == (0, None)


@contextmanager
def served(hf: Holdfast) -> Iterator[httpx.Client]:
    """The route over real HTTP, for the block."""
    listening = bound("127.0.0.1", 0)
    begun = threading.Event()
    server = HttpServer(
        Litestar(status_routes(hf), logging_config=None), on_begun=begun.set, on_stop=lambda: None
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    assert begun.wait(PATIENCE_S)
    with httpx.Client(
        base_url=f"http://127.0.0.1:{listening.getsockname()[1]}", timeout=PATIENCE_S
    ) as client:
        yield client
    server.stop()
    thread.join(PATIENCE_S)
