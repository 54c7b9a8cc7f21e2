"""`holdfast jobs run`: a worker that runs real commands, judges their results, and stops when it
must.
"""

import json
import shlex
import signal
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.harness.processes import state_of
from tests.harness.timeouts import PATIENCE_S
from tests.surfaces.command import ENTRY, CommandLine, Ran

pytestmark = pytest.mark.prove

LABEL = "tmux:a"


@pytest.fixture
def holdfast(tmp_path: Path) -> CommandLine:
    # Nobody listens on port 9 here: a worker needs no broker.
    nowhere = {"MQTT_BROKER": "127.0.0.1", "MQTT_PORT": "9"}
    return CommandLine(tmp_path, HOLDFAST_STORE=f"sqlite:{tmp_path}/state/store.sqlite", **nowhere)


def register(holdfast: CommandLine, *more: str) -> str:
    ran = holdfast("jobs", "register", "--prompt", "sort it", "--agent-session", LABEL, *more)
    assert (ran.status, ran.err) == (0, "")
    return ran.out.strip()


def get(holdfast: CommandLine, job_id: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(holdfast("jobs", "get", "--job", job_id, "--json").out)
    return found


def once(holdfast: CommandLine, *words: str, options: tuple[str, ...] = ()) -> Ran:
    return holdfast("jobs", "run", "--agent-session", LABEL, "--once", *options, "--", *words)


def worker(holdfast: CommandLine, script: str, *options: str) -> "subprocess.Popen[str]":
    return holdfast.start(
        "jobs", "run", "--agent-session", LABEL, *options, "--", "sh", "-c", script
    )


def line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_the_command_finds_the_job_in_its_environment_and_on_stdin(
    holdfast: CommandLine, tmp_path: Path
) -> None:
    job_id = register(
        holdfast, "--artifact", "a.md", "--artifact", "b.md", "--workdir", str(tmp_path)
    )
    ran = once(
        holdfast,
        "sh",
        "-c",
        "touch a.md b.md; cat; env | grep ^HOLDFAST_JOB | sort; pwd; echo fine",
    )
    assert ran.status == 0, ran
    lines = ran.out.splitlines()
    answer = json.loads(lines[0])
    assert (answer["job_id"], answer["prompt"], answer["status"]) == (job_id, "sort it", "running")
    assert lines[1:] == [
        "HOLDFAST_JOB_AGENT=agent",
        "HOLDFAST_JOB_ARTIFACTS=a.md",
        "HOLDFAST_JOB_ATTEMPT=1",
        f"HOLDFAST_JOB_ID={job_id}",
        "HOLDFAST_JOB_PROMPT=sort it",
        f"HOLDFAST_JOB_SESSION={LABEL}",
        f"HOLDFAST_JOB_TOKEN={answer['token']}",
        str(tmp_path),
        "fine",
    ]
    job = get(holdfast, job_id)
    assert (job["status"], job["result"], job["claimed_by"]) == ("completed", "fine", None)
    assert once(holdfast, "true")[:2] == (3, "")


def test_the_prompt_alone_on_stdin_or_nothing(holdfast: CommandLine) -> None:
    register(holdfast)
    register(holdfast)
    assert once(holdfast, "cat", options=("--stdin", "prompt", "-q")) == (0, "sort it\n", "")
    assert once(holdfast, "wc", "-c", options=("--stdin", "none", "-q")) == (0, "0\n", "")


@pytest.mark.parametrize(
    ("script", "options", "code", "says"),
    [
        ("echo oh no; exit 3", (), "command_failed", "the command ended with 3: oh no"),
        ("kill -9 $$", (), "command_failed", "the command was ended by signal 9"),
        (
            "true",
            ("--artifact", "never.md"),
            "artifacts_missing",
            "expected and not there: never.md",
        ),
        ("sleep 60", ("--timeout", "0.3"), "timed_out", "it took longer than 0.3 s"),
        ("true", ("--workdir", "/no/such/folder"), "not_started", "/no/such/folder is not there"),
    ],
    ids=["fails", "killed", "artifact", "time", "folder"],
)
def test_a_job_that_does_not_come_out_right_ends_in_error(
    holdfast: CommandLine, script: str, options: tuple[str, ...], code: str, says: str
) -> None:
    job_id = register(holdfast, *options)
    ran = once(holdfast, "sh", "-c", script)
    assert ran.status == 1, ran
    job = get(holdfast, job_id)
    assert (job["status"], job["error_code"]) == ("error", code)
    assert says in job["error"]
    assert "Traceback" not in ran.err


def test_a_validation_decides(holdfast: CommandLine, tmp_path: Path) -> None:
    good, bad = (
        register(holdfast, "--workdir", str(tmp_path)),
        register(holdfast, "--workdir", str(tmp_path)),
    )
    check = ("--validate", "sh -c 'grep -q sorted out.txt && test -n \"$HOLDFAST_JOB_ID\"'")
    assert once(holdfast, "sh", "-c", "echo sorted > out.txt", options=check).status == 0
    assert once(holdfast, "sh", "-c", "echo mess > out.txt", options=check).status == 1
    assert get(holdfast, good)["status"] == "completed"
    assert (get(holdfast, bad)["error_code"], get(holdfast, bad)["status"]) == (
        "not_valid",
        "error",
    )


def test_an_invalid_command_picks_no_job(holdfast: CommandLine) -> None:
    job_id = register(holdfast)
    for words in (["nosuchcommand"], [""]):
        ran = once(holdfast, *words)
        assert ran.status == 2, ran
        assert "no command" in ran.err
    assert holdfast("jobs", "run", "--agent-session", LABEL).status == 2
    for option, value in (
        ("--validate", "nosuch"),
        ("--validate", "sh -c 'x"),
        ("--validate", ""),
        ("--heartbeat", "nan"),
        ("--heartbeat", "inf"),
    ):
        ran = holdfast(
            "jobs", "run", "--agent-session", LABEL, "--once", option, value, "--", "true"
        )
        assert (ran.status, option.strip("-") in ran.err) == (2, True), ran
    assert get(holdfast, job_id)["attempt"] == 0


def test_a_worker_does_one_job_after_the_other_and_ends_when_there_is_none(
    holdfast: CommandLine,
) -> None:
    ids = [register(holdfast) for _ in range(3)]
    ran = holdfast(
        "jobs",
        "run",
        "--agent-session",
        LABEL,
        "--wait",
        "0",
        "--",
        "sh",
        "-c",
        "echo $HOLDFAST_JOB_ID",
    )
    assert (ran.status, ran.out.split()) == (0, ids)
    assert [get(holdfast, job_id)["status"] for job_id in ids] == ["completed"] * 3
    logged = [json.loads(text) for text in holdfast("log", "--json").out.splitlines()]
    moves = [entry["revision"] for entry in logged if entry["kind"] == "job.status_changed"]
    # An end and the next beginning are one transaction: their revisions follow each other at once,
    # but for the event's.
    assert len(moves) == 6
    kinds = [entry["kind"] for entry in logged[3:]]
    assert kinds[2:5] == ["job.published", "job.status_changed", "job.status_changed"]


def test_sigterm_ends_the_command_and_puts_the_job_back(
    holdfast: CommandLine, tmp_path: Path
) -> None:
    job_id = register(holdfast)
    process = worker(
        holdfast,
        f"trap 'touch {tmp_path}/told; exit 0' TERM; echo on; while :; do sleep 0.05; done",
    )
    assert line(process) == "on\n"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert (tmp_path / "told").exists()
    assert f"job {job_id} is pending again" in err
    job = get(holdfast, job_id)
    assert (job["status"], job["attempt"], job["token"]) == ("pending", 1, None)


def test_sigterm_ends_a_worker_that_waits(holdfast: CommandLine) -> None:
    register(holdfast)
    process = worker(holdfast, "echo on")
    assert line(process) == "on\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


@pytest.mark.parametrize("verb", ["cancel", "requeue"])
def test_a_job_that_is_taken_away_ends_its_command(holdfast: CommandLine, verb: str) -> None:
    job_id = register(holdfast)
    process = worker(holdfast, "echo $$; exec sleep 60", "--once")
    pid = int(line(process))
    assert holdfast("jobs", verb, "--job", job_id).status == 0
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 4, err
    assert not Path(f"/proc/{pid}").exists()
    assert get(holdfast, job_id)["status"] == {"cancel": "cancelled", "requeue": "pending"}[verb]


def test_a_killed_worker_takes_its_command_along_and_the_next_one_gets_the_job(
    holdfast: CommandLine,
) -> None:
    job_id = register(holdfast)
    process = worker(holdfast, "echo $$ $HOLDFAST_JOB_TOKEN; exec sleep 60")
    pid, token = line(process).split()
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    ran = once(holdfast, "sh", "-c", "echo again $HOLDFAST_JOB_ATTEMPT", options=("--wait", "20"))
    assert (ran.status, ran.out) == (0, "again 2\n")
    assert state_of(int(pid)) in (None, "Z")
    late = holdfast("jobs", "status", "--job", job_id, "--set", "error", "--token", token)
    assert late.status == 4
    assert get(holdfast, job_id)["status"] == "completed"


def test_heartbeats_keep_a_quiet_job_alive_and_tell_progress(holdfast: CommandLine) -> None:
    job_id = register(holdfast, "--idle-timeout", "2")
    ran = once(holdfast, "sh", "-c", "echo first; sleep 4; echo last")
    assert (ran.status, ran.out) == (0, "first\nlast\n"), ran
    answer = [
        json.loads(text) for text in holdfast("jobs", "logs", job_id, "--json").out.splitlines()
    ]
    events = [
        (one["payload"]["event"], one["payload"]["detail"])
        for one in answer
        if one["event"] == "published"
    ]
    assert [*events[:2], events[-1]] == [
        ("started", ""),
        ("progress", "first"),
        ("completed", "last"),
    ]
    # A heartbeat may come between the last line and the end.
    assert events[2:-1] in ([], [("progress", "last")])


def test_a_command_can_speak_for_its_job(holdfast: CommandLine) -> None:
    from tests.surfaces.command import ENTRY

    job_id = register(holdfast)
    call = shlex.join(ENTRY)
    ran = once(
        holdfast,
        "sh",
        "-c",
        f'{call} jobs publish "$HOLDFAST_JOB_ID" permission_required --token '
        '"$HOLDFAST_JOB_TOKEN" 2>/dev/null; '
        f'{call} jobs get --job "$HOLDFAST_JOB_ID" | grep waiting_since',
    )
    assert ran.status == 0, ran
    assert ran.out.splitlines()[0] == "2"
    assert "waiting_since       2" in ran.out
    assert get(holdfast, job_id)["waiting_since"] is None


def test_an_unreachable_broker_is_reported_once_and_fails_nothing(holdfast: CommandLine) -> None:
    register(holdfast)
    register(holdfast)
    ran = holdfast("jobs", "run", "--agent-session", LABEL, "--wait", "0", "--", "true")
    assert ran.status == 0
    assert ran.err.count("the message broker 127.0.0.1:9 cannot be used") == 1
    assert "sent when it is back" in ran.err
    with_broker = json.loads(holdfast("jobs", "list", "--json").out)
    assert [job["status"] for job in with_broker] == ["completed", "completed"]


def test_one_shot_commands(holdfast: CommandLine) -> None:
    job_id = register(holdfast)
    token = str(
        json.loads(holdfast("jobs", "pick", "--agent-session", LABEL, "--json").out)["token"]
    )
    assert holdfast("jobs", "heartbeat", "--job", job_id, "--token", token) == (0, "", "")
    assert holdfast("jobs", "heartbeat", "--job", job_id, "--token", "1").status == 4
    assert holdfast("jobs", "reap") == (0, "nothing to reap\n", "")
    assert (
        holdfast("jobs", "requeue", "--job", job_id, "--token", token).out
        == f"{job_id} is pending\n"
    )
    assert holdfast("jobs", "requeue", "--job", job_id).status == 1
    assert (
        holdfast("jobs", "cancel", "--job", job_id, "--reason", "no use").out
        == f"{job_id} is cancelled: no use\n"
    )
    assert json.loads(holdfast("jobs", "prune", "--keep", "0", "--json").out) == {"removed": 1}
    assert holdfast("jobs", "get", "--job", job_id).status == 1


def test_a_job_picked_in_a_dead_shell_is_not_reaped_before_its_time(holdfast: CommandLine) -> None:
    job_id = register(holdfast, "--timeout", "1000", "--idle-timeout", "1000")
    assert holdfast.shell(f"holdfast jobs pick --agent-session {LABEL}").out == f"{job_id}\n"
    assert holdfast("jobs", "reap").out == "nothing to reap\n"
    assert holdfast("jobs", "pick", "--agent-session", LABEL).status == 3
    assert get(holdfast, job_id)["status"] == "running"


def test_a_job_picked_for_a_process_is_pending_when_that_dies(
    holdfast: CommandLine, sleeper: "subprocess.Popen[bytes]"
) -> None:
    job_id = register(holdfast)
    assert (
        holdfast("jobs", "pick", "--agent-session", LABEL, "--pid", str(sleeper.pid)).out
        == f"{job_id}\n"
    )
    assert holdfast("jobs", "pick", "--agent-session", LABEL).status == 3
    sleeper.kill()
    sleeper.wait()
    assert holdfast("jobs", "pick", "--agent-session", LABEL).out == f"{job_id}\n"


def test_a_damaged_job_is_one_clear_error_and_holds_up_no_other(holdfast: CommandLine) -> None:
    damaged, sound = register(holdfast), register(holdfast)
    raw = sqlite3.connect(holdfast.folder / "state" / "store.sqlite")
    with raw:
        raw.execute("UPDATE s_jobs SET value = '{\"half\"' WHERE key = ?", (damaged,))
    raw.close()
    for words in (
        ["get", "--job", damaged],
        ["status", "--job", damaged, "--set", "cancelled"],
        ["cancel", "--job", damaged],
        ["publish", damaged, "started"],
        ["watch", damaged],
    ):
        ran = holdfast("jobs", *words)
        assert (ran.status, ran.out) == (7, ""), (words, ran)
        assert f"holdfast store remove jobs {damaged}" in ran.err
        assert "Traceback" not in ran.err
    ran = holdfast(
        "jobs",
        "run",
        "--agent-session",
        LABEL,
        "--wait",
        "0",
        "-q",
        "--",
        "sh",
        "-c",
        "echo $HOLDFAST_JOB_ID",
    )
    assert (ran.status, ran.out) == (0, f"{sound}\n")


def test_a_command_finds_the_folder_of_jobs_that_its_worker_works_in(
    holdfast: CommandLine, tmp_path: Path
) -> None:
    there = ("--registry-dir", str(tmp_path / "jobs"))
    ran = holdfast(
        "jobs", "register", "--prompt", "x", "--agent-session", LABEL, "--id", "mine", *there
    )
    assert ran.status == 0, ran
    holdfast("jobs", "register", "--prompt", "x", "--agent-session", LABEL, "--id", "next", *there)
    script = (
        f"{shlex.join(ENTRY)} jobs list | cut -f1; "
        f"{shlex.join(ENTRY)} jobs pick --agent-session {LABEL}; "
        f"{shlex.join(ENTRY)} jobs pick --agent-session {LABEL} --store "
        f"sqlite:{tmp_path}/other.sqlite; echo $?"
    )
    ran = holdfast(
        "jobs", "run", "--agent-session", LABEL, "--once", "-q", *there, "--", "sh", "-c", script
    )
    assert ran.out.splitlines() == ["mine", "next", "next", "3"], ran


def test_a_worker_of_a_store_inside_one_of_a_folder_works_on_the_store(
    holdfast: CommandLine, tmp_path: Path
) -> None:
    job_id = register(holdfast)
    holdfast.environment["HOLDFAST_REGISTRY_DIR"] = str(tmp_path / "jobs")
    store = holdfast.environment["HOLDFAST_STORE"]
    words = ("sh", "-c", f"{shlex.join(ENTRY)} jobs list | cut -f1")
    ran = holdfast(
        "jobs", "run", "--agent-session", LABEL, "--once", "-q", "--store", store, "--", *words
    )
    assert (ran.status, ran.out) == (0, f"{job_id}\n"), ran
    assert holdfast("jobs", "list", "--json").out.split() == ["[]"]


def test_a_word_too_many_is_not_taken_for_a_second_job(holdfast: CommandLine) -> None:
    job_id = register(holdfast)
    for words, says in (
        ([job_id, "progress", "extra"], "JOB and EVENT"),
        ([job_id, "progress", "--job", job_id], "--job"),
    ):
        ran = holdfast("jobs", "publish", *words)
        assert (ran.status, ran.out, says in ran.err) == (2, "", True), ran


def test_words_that_are_no_utf_8_are_named(holdfast: CommandLine) -> None:
    job_id = register(holdfast)
    for what, words in (
        ("prompt", ["register", "--agent-session", LABEL, "--prompt", "caf\udce9"]),
        (
            "expected artifact",
            ["register", "--agent-session", LABEL, "--prompt", "x", "--artifact", "caf\udce9"],
        ),
        ("detail", ["publish", job_id, "progress", "--detail", "caf\udce9"]),
        ("result", ["status", "--job", job_id, "--set", "completed", "--result", "caf\udce9"]),
    ):
        ran = holdfast("jobs", *words)
        assert (ran.status, ran.out) == (2, ""), ran
        assert f"the {what} is not UTF-8 at character 4" in ran.err
    assert get(holdfast, job_id)["last_seq"] == 0


def test_what_cannot_be_registered_is_refused_with_its_name(holdfast: CommandLine) -> None:
    for option, value, says in (
        ("--broker-port", "0", "port is 0"),
        ("--broker-port", "70000", "port is 70000"),
        ("--broker-username", "caf\udce9", "broker username"),
        ("--broker-password-env", "", "variable of the broker's password"),
        ("--workdir", "caf\udce9", "the workdir is not UTF-8"),
        ("--artifact", "", "expected artifact"),
        ("--timeout", "1e300", "timeout_sec is 1e+300"),
        ("--timeout", "nan", "nan is not a number"),
        ("--idle-timeout", "-1", "idle_timeout_sec is -1"),
        ("--max-attempts", "0", "max_attempts is 0"),
        ("--topic-prefix", "a/#", "topics"),
        ("--id", "", "job id"),
    ):
        ran = holdfast("jobs", "register", "--agent-session", LABEL, "--prompt", "x", option, value)
        assert (ran.status, ran.out, says in ran.err) == (2, "", True), (option, ran)
    assert holdfast("jobs", "list", "--json").out == "[]\n"


def test_the_module_is_the_same_program(holdfast: CommandLine) -> None:
    import sys

    job_id = register(holdfast)
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.jobs", "pick", "--agent-session", LABEL],
        env=holdfast.environment,
        cwd=holdfast.folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"{job_id}\n")


def test_a_job_that_an_event_cancelled_is_no_success_of_its_worker(holdfast: CommandLine) -> None:
    job_id = register(holdfast)
    # No sign of life falls due: only the notice of the end can stop the command.
    process = worker(holdfast, "echo on; exec sleep 600", "--once", "--heartbeat", "600")
    assert line(process) == "on\n"
    assert holdfast("jobs", "publish", job_id, "cancelled").status == 6
    _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, get(holdfast, job_id)["status"]) == (4, "cancelled")
    assert "was left" in err


def test_an_end_reported_by_the_command_is_the_workers(holdfast: CommandLine) -> None:
    job_id = register(holdfast)
    ran = once(
        holdfast,
        "sh",
        "-c",
        f"{shlex.join(ENTRY)} jobs publish $HOLDFAST_JOB_ID error --detail no; exit 0",
    )
    assert (ran.status, get(holdfast, job_id)["status"]) == (1, "error")
    assert f"job {job_id} failed" in ran.err


@pytest.mark.parametrize(("event", "status"), [("completed", 0), ("error", 1)])
def test_a_command_that_reported_its_end_may_finish(
    holdfast: CommandLine, tmp_path: Path, event: str, status: int
) -> None:
    job_id = register(holdfast)
    said = f"{shlex.join(ENTRY)} jobs publish $HOLDFAST_JOB_ID {event} --token $HOLDFAST_JOB_TOKEN"
    # Signs of life fall due many times while it tidies up.
    ran = once(
        holdfast, "sh", "-c", f"{said}; sleep 1; echo tidied", options=("--heartbeat", "0.05")
    )
    assert (ran.status, get(holdfast, job_id)["status"]) == (
        status,
        "completed" if status == 0 else "error",
    )
    assert ran.out.endswith("tidied\n")


def test_an_operator_s_verdict_ends_the_command(holdfast: CommandLine) -> None:
    job_id = register(holdfast)
    process = worker(holdfast, "echo on; exec sleep 600", "--once", "--heartbeat", "600")
    assert line(process) == "on\n"
    assert (
        holdfast("jobs", "status", "--job", job_id, "--set", "error", "--error", "enough").status
        == 0
    )
    process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, get(holdfast, job_id)["error"]) == (1, "enough")


def test_more_missing_artifacts_than_an_event_can_tell_end_the_job_and_not_the_worker(
    holdfast: CommandLine,
) -> None:
    job_id = register(
        holdfast, *(word for n in range(400) for word in ("--artifact", f"{n:0100d}.md"))
    )
    assert once(holdfast, "true").status == 1
    assert get(holdfast, job_id)["error_code"] == "artifacts_missing"


def test_a_silent_validation_does_not_show_the_command(
    holdfast: CommandLine,
) -> None:
    job_id = register(holdfast)
    assert once(holdfast, "echo", "all good", options=("--validate", "false")).status == 1
    assert get(holdfast, job_id)["error"] == "the validation ended with 1"
