"""Jobs and verdicts near the bound of a record, and records that cannot be read, over the real
surfaces: no queue stops.
"""

import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.domains.jobs import Job
from holdfast.domains.jobs.records import JOBS
from holdfast.kernel.codec import to_json
from holdfast.kernel.limits import JOB_PROMPT_BYTES_MAX, PROMPT_BYTES_MAX, RECORD_BYTES_MAX
from holdfast.runtime.connection import connect
from tests.surfaces.command import CommandLine
from tests.surfaces.mcp_agent import Agents, ToolError, agents_on
from tests.surfaces.server_http import served

PROMPT = "漢" * 262_000
"""786,000 bytes, and few enough characters for a schema that counts those."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/s.sqlite"


@pytest.fixture
def holdfast(tmp_path: Path, url: str) -> CommandLine:
    return CommandLine(tmp_path, HOLDFAST_STORE=url)


def near_the_bound() -> list[str]:
    """Artifacts by which a job with the prompt is just under the bound of a record, and no claim
    fits.
    """
    artifacts = ["a" * 4096] * 62
    with connect("memory:") as hf:
        job = hf.jobs.register_job("x", agent="agent", agent_session="q", job_id="scratch0")
    size = len(to_json(replace(job, prompt=PROMPT, expected_artifacts=tuple(artifacts))))
    # Less than a claim adds, more than the process's times and ids differ in length.
    left = RECORD_BYTES_MAX - 40 - size
    while left > 4099:
        artifacts.append("a" * min(4096, left - 103))
        left -= len(artifacts[-1]) + 3
    return [*artifacts, "a" * (left - 3)]


def is_refused_clearly(message: str) -> bool:
    return "bytes" in message and "may have" in message and "file" in message


@pytest.mark.parametrize("size", [1_048_500, 1_048_300, 800_000])
def test_a_prompt_that_could_not_be_claimed_is_refused_by_the_command(
    holdfast: CommandLine, tmp_path: Path, size: int
) -> None:
    (tmp_path / "prompt").write_text("x" * size)
    ran = holdfast("jobs", "register", "--prompt-file", "prompt", "--agent-session", "q")
    assert ran.status == 2 and is_refused_clearly(ran.err) and f"{size + 2} bytes" in ran.err
    assert (
        holdfast(
            "jobs", "register", "--prompt", "small", "--agent-session", "q", "--id", "small"
        ).status
        == 0
    )
    assert holdfast("jobs", "pick", "--agent-session", "q").out == "small\n"


def test_artifacts_that_leave_no_room_for_a_claim_are_refused_by_the_command(
    holdfast: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "prompt").write_text(PROMPT)
    words = [word for path in near_the_bound() for word in ("--artifact", path)]
    ran = holdfast("jobs", "register", "--prompt-file", "prompt", "--agent-session", "q", *words)
    assert ran.status == 2 and is_refused_clearly(ran.err)
    assert (
        holdfast(
            "jobs", "register", "--prompt", "small", "--agent-session", "q", "--id", "small"
        ).status
        == 0
    )
    assert holdfast("jobs", "pick", "--agent-session", "q").out == "small\n"


def test_a_worker_runs_a_job_with_more_artifacts_than_a_variable_holds(
    holdfast: CommandLine, tmp_path: Path
) -> None:
    words = [word for at in range(60) for word in ("--artifact", f"{at:02d}" + "a" * 4000)]
    assert (
        holdfast(
            "jobs", "register", "--prompt", "x", "--agent-session", "q", "--id", "many", *words
        ).status
        == 0
    )
    run = 'cat > got; echo "${HOLDFAST_JOB_ARTIFACTS-none}"'
    ran = holdfast("jobs", "run", "--agent-session", "q", "--once", "-q", "--", "sh", "-c", run)
    assert ran.out == "none\n"
    assert len(json.loads((tmp_path / "got").read_text())["expected_artifacts"]) == 60
    assert (
        json.loads(holdfast("jobs", "get", "many", "--json").out)["error_code"]
        == "artifacts_missing"
    )


# --- over MCP ---


@pytest.fixture
def agents(url: str, tmp_path: Path) -> Iterator[Agents]:
    with agents_on(url, tmp_path) as made:
        yield made


@pytest.mark.prove
@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(lambda: {"prompt": "x" * 1_048_500}, id="1048500 bytes"),
        pytest.param(lambda: {"prompt": "x" * 1_048_000}, id="1048000 bytes"),
        pytest.param(lambda: {"prompt": "🙂" * 300_000}, id="300000 emoji"),
        pytest.param(lambda: {"prompt": "🙂" * 250_000}, id="250000 emoji"),
        pytest.param(lambda: {"prompt": "\0" * 150_000}, id="150000 NULs"),
        pytest.param(
            lambda: {"prompt": PROMPT, "expected_artifacts": near_the_bound()}, id="artifacts"
        ),
    ],
)
def test_an_agent_cannot_stop_the_queue_of_another(
    agents: Agents, asked: Callable[[], dict[str, object]]
) -> None:
    mischief, other = agents("tmux:m", "--queue", "mine"), agents("tmux:a", "--queue", "q")
    with pytest.raises(ToolError) as caught:
        mischief.call("create_job", queue="q", **asked())
    assert caught.value.code == "invalid_value" and "bytes" in caught.value.message, (
        caught.value.message
    )
    made = other.call("create_job", prompt="small", queue="q")["job"]
    assert other.call("claim_job")["job"]["job_id"] == made["job_id"]


@pytest.mark.prove
def test_the_schema_says_that_bytes_count(agents: Agents) -> None:
    schema = {tool.name: tool.input_schema for tool in agents("tmux:a").tools()}
    for tool, most in (("create_job", JOB_PROMPT_BYTES_MAX), ("send_request", PROMPT_BYTES_MAX)):
        described = json.dumps(schema[tool]["properties"]["prompt"])
        assert f'"maxLength": {most}' in described and f"at most {most} bytes" in described


@pytest.mark.prove
@pytest.mark.parametrize("outcome", ["completed", "error"])
def test_a_report_of_any_characters_ends_the_job(
    agents: Agents, holdfast: CommandLine, outcome: str
) -> None:
    """8000 NULs are 48,000 bytes of JSON, and an event may have 32,768."""
    agent = agents("tmux:a", "--queue", "q")
    made = agent.call("create_job", prompt="x", queue="q")["job"]
    agent.call("claim_job")
    assert (
        agent.call("report_job", job_id=made["job_id"], outcome=outcome, detail="\0" * 8000)["job"][
            "status"
        ]
        == outcome
    )
    job = json.loads(holdfast("jobs", "get", made["job_id"], "--json").out)
    assert (job["result"] or job["error"]) == "\0" * 8000
    assert agent.call("claim_job")["job"] is None


# --- verdicts ---


@pytest.mark.prove
def test_a_verdict_that_does_not_fit_over_http_is_cut_and_the_work_not_done_again(
    url: str, holdfast: CommandLine
) -> None:
    with connect(url) as hf, served(hf) as server:
        server.http.post(
            "/v1/jobs", json={"prompt": "x" * 700_000, "agent_session": "q", "job_id": "long"}
        ).raise_for_status()
        token = server.http.post("/v1/queue/pick", json={"agent_session": "q"}).json()["token"]
        answer = server.http.post(
            "/v1/jobs/long/status",
            json={"status": "completed", "token": token, "result": "r" * 700_000},
        )
        assert (answer.status_code, answer.json()["status"]) == (200, "completed")
        assert answer.json()["result"].endswith("r [cut]")
    assert holdfast("jobs", "pick", "--agent-session", "q").status == 3


# --- what is in a store already ---


def old_job(url: str, bytes_left: int = 0) -> Job:
    """A pending job that an earlier version registered, whose record has so many bytes left."""
    with connect(url) as hf:
        job = hf.jobs.register_job("x", agent="agent", agent_session="q")
        job = replace(job, prompt="x" * (RECORD_BYTES_MAX - bytes_left - len(to_json(job)) + 1))
        hf.store.transact(lambda tx: tx.put(JOBS, job.job_id, job), scope=[JOBS])
    return job


@pytest.mark.parametrize("kind", ["sqlite", "files", "postgres"])
def test_a_job_of_an_earlier_version_is_passed_over_and_the_doctor_gets_out_of_it(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = (
        str(request.getfixturevalue("postgres_url"))
        if kind == "postgres"
        else f"{kind}:{tmp_path}/store"
    )
    holdfast = CommandLine(tmp_path, HOLDFAST_STORE=url, TMUX_TMPDIR=str(tmp_path))
    job = old_job(url)
    for name in ("one", "two"):
        assert (
            holdfast(
                "jobs", "register", "--prompt", "x", "--agent-session", "q", "--id", name
            ).status
            == 0
        )
    ran = holdfast("jobs", "pick", "--agent-session", "q")
    assert (ran.status, ran.out) == (0, "one\n") and job.job_id in ran.err
    ran = holdfast("jobs", "run", "--agent-session", "q", "--once", "--", "true")
    assert ran.status == 0
    assert json.loads(holdfast("jobs", "get", "two", "--json").out)["status"] == "completed"
    ran = holdfast("doctor")
    assert (
        ran.status == 7 and f"job {job.job_id}" in ran.out and "can never be picked" in ran.out
    ), ran.out
    assert f"holdfast store remove jobs {job.job_id}" in ran.out
    assert holdfast("store", "remove", "jobs", job.job_id).status == 0
    assert "can never be picked" not in holdfast("doctor").out


def test_a_job_of_an_earlier_version_with_a_little_room_ends_in_error(
    holdfast: CommandLine, url: str
) -> None:
    job = old_job(url, 200)
    ran = holdfast("jobs", "pick", "--agent-session", "q", "--pid", str(os.getpid()))
    assert ran.status == 3 and job.job_id in ran.err
    found = json.loads(holdfast("jobs", "get", job.job_id, "--json").out)
    assert (found["status"], found["error_code"]) == ("error", "too_large")
    assert holdfast("jobs", "list", "--status", "error").status == 0


@pytest.mark.parametrize("damage", ["{", '{"schema_version": 99}'])
def test_a_damaged_or_newer_job_is_passed_over_and_the_doctor_names_it(
    holdfast: CommandLine, url: str, tmp_path: Path, damage: str
) -> None:
    for name in ("bad", "good"):
        assert (
            holdfast(
                "jobs", "register", "--prompt", "x", "--agent-session", "q", "--id", name
            ).status
            == 0
        )
    with closing(sqlite3.connect(tmp_path / "s.sqlite")) as raw, raw:
        assert (
            raw.execute(
                "UPDATE s_jobs SET value = ? WHERE key = 'bad'", (damage.encode(),)
            ).rowcount
            == 1
        )
    ran = holdfast("jobs", "pick", "--agent-session", "q")
    assert (ran.status, ran.out) == (0, "good\n") and "bad" in ran.err
    holdfast.environment["TMUX_TMPDIR"] = str(tmp_path)
    ran = holdfast("doctor")
    assert ran.status == 7
    assert "job bad waits in a queue and can never be picked" in ran.out
    assert "jobs/bad" in next(
        line for line in ran.out.splitlines() if line.startswith("fail  records")
    )
    assert holdfast("store", "remove", "jobs", "bad").status == 0
    assert "bad" not in holdfast("doctor").out


def test_a_record_of_any_bytes_can_be_taken_out(holdfast: CommandLine, tmp_path: Path) -> None:
    """The journal keeps its beginning, which as JSON may be six times as long."""
    assert (
        holdfast("jobs", "register", "--prompt", "x", "--agent-session", "q", "--id", "bad").status
        == 0
    )
    with closing(sqlite3.connect(tmp_path / "s.sqlite")) as raw, raw:
        raw.execute("UPDATE s_jobs SET value = ? WHERE key = 'bad'", (b"\1" * 20_000,))
    assert holdfast("store", "remove", "jobs", "bad").status == 0
    assert holdfast("store", "check").status == 0
