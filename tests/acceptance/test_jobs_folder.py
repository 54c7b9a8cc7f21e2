"""A folder of jobs that another program filled: jobs are listed, picked and completed in place, and
that program can still read them.
"""

import fcntl
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.harness.processes import flock_waiters
from tests.harness.timeouts import PATIENCE_S, until
from tests.surfaces.command import CommandLine, Ran

pytestmark = pytest.mark.prove

LABEL = "tmux:claude"
PASSWORD, KEY = "pw-4711-broker", "key-4711-of-events"
THEIRS = (
    "schema_version",
    "created_at",
    "prompt",
    "agent",
    "agent_session",
    "topic_prefix",
    "expected_artifacts",
    "auth_token",
)
NOBODY = {"MQTT_BROKER": "127.0.0.1", "MQTT_PORT": "9"}


def record(job_id: str, **more: Any) -> dict[str, Any]:
    """A record of version 1 as the other program writes it, with a field of its own here and
    there.
    """
    return {
        "schema_version": 1,
        "job_id": job_id,
        "status": "pending",
        "created_at": "2026-06-19T09:30:00Z",
        "updated_at": "2026-06-19T09:32:00Z",
        "prompt": "정렬 문제 10개를 만들어 sort_problems.md로 저장",
        "agent": "claude-code",
        "agent_session": LABEL,
        "broker": {
            "host": "127.0.0.1",
            "port": 9,
            "tls": False,
            "username": None,
            "password": PASSWORD,
            "keepalive": 30,
        },
        "topic_prefix": f"python/mqtt/jobs/{job_id}",
        "timeout_sec": 600,
        "idle_timeout_sec": 120,
        "expected_artifacts": ["sort_problems.md"],
        "last_seq": 4,
        "auth_token": KEY,
        "reviewers": {"first": ["a", 1, None]},
        **more,
    }


class Folder(CommandLine):
    """`holdfast jobs` on a folder with three jobs of the other program, made within one minute in
    another order.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, **NOBODY)
        self.jobs = folder / ".hermes" / "jobs"
        self.jobs.mkdir(parents=True)
        (self.jobs / ".lock").touch()
        # What the other program left when it was killed between writing and renaming.
        (self.jobs / ".abc12345.x7f.tmp").write_text('{"job_id": "abc1')
        for job_id, second in (("abc12345", 2), ("-zy98_76", 1), ("_0000001", 3)):
            self.write(record(job_id, created_at=f"2026-06-19T09:30:0{second}Z"))

    def __call__(self, *words: str, cwd: Path | None = None, stdin: bytes | None = None) -> Ran:
        verb, *more = words
        named = ("jobs", verb, "--registry-dir", ".hermes/jobs", *more)
        return super().__call__(*named, cwd=cwd, stdin=stdin)

    def module(self, verb: str, *words: str) -> Ran:
        """The same as a module of Python."""
        command = [
            sys.executable,
            "-m",
            "holdfast.jobs",
            verb,
            "--registry-dir",
            ".hermes/jobs",
            *words,
        ]
        return self._ran(command, self.folder)

    def write(self, document: dict[str, Any]) -> None:
        path = self.jobs / f"{document['job_id']}.json"
        path.write_text(json.dumps(document, ensure_ascii=False))
        path.chmod(0o600)

    def read(self, job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.jobs / f"{job_id}.json").read_text())
        return found

    def files(self) -> list[Path]:
        return [path for path in self.folder.rglob("*") if path.is_file()]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def listed(ran: Ran) -> list[tuple[str, ...]]:
    return [tuple(row.split("\t")[:2]) for row in ran.out.splitlines()]


def test_it_is_listed_in_the_order_it_was_made_and_nothing_is_touched(folder: Folder) -> None:
    before = {path.name: path.read_bytes() for path in folder.jobs.glob("*.json")}
    expected = [("-zy98_76", "pending"), ("abc12345", "pending"), ("_0000001", "pending")]
    for ran in (folder("list"), folder.module("list")):
        assert (ran.status, listed(ran), ran.err) == (0, expected, "")
    shown = json.loads(folder("get", "--job", "-zy98_76", "--json").out)
    assert (shown["job_id"], shown["last_seq"], shown["signed"]) == ("-zy98_76", 4, True)
    assert before == {path.name: path.read_bytes() for path in folder.jobs.glob("*.json")}


def test_it_is_worked_through_in_place_and_keeps_what_it_had(folder: Folder) -> None:
    assert folder("pick", "--agent-session", LABEL).out == "-zy98_76\n"
    assert folder.module("pick", "--agent-session", LABEL).out == "abc12345\n"
    third = json.loads(folder("pick", "--agent-session", LABEL, "--json").out)
    assert third["job_id"] == "_0000001"
    assert folder.module("pick", "--agent-session", LABEL).status == 3
    assert folder("status", "--job", "-zy98_76", "--set", "completed").status == 0
    assert folder.module("status", "--job", "abc12345", "--set", "completed").status == 0
    assert (
        folder(
            "status",
            "--job",
            "_0000001",
            "--set",
            "error",
            "--token",
            str(third["token"]),
            "--error",
            "no",
        ).status
        == 0
    )
    for job_id, status in (
        ("-zy98_76", "completed"),
        ("abc12345", "completed"),
        ("_0000001", "error"),
    ):
        after, before = folder.read(job_id), record(job_id)
        assert (after["status"], after["attempt"]) == (status, 1)
        assert after["updated_at"] > before["updated_at"]
        before["created_at"] = after["created_at"]
        for name in (*THEIRS, "broker", "reviewers", "timeout_sec", "idle_timeout_sec", "last_seq"):
            assert after[name] == before[name], name


def test_what_the_other_program_changes_in_between_counts(folder: Folder) -> None:
    folder("list")
    folder.write(record("abc12345", status="cancelled"))
    folder.write(record("new00000", created_at="2019-01-01T00:00:00Z"))
    (folder.jobs / "-zy98_76.json").unlink()
    assert folder("pick", "--agent-session", LABEL).out == "new00000\n"
    assert folder("status", "--job", "abc12345", "--set", "completed").status == 1
    assert [row[0] for row in listed(folder("list", "--status", "pending"))] == ["_0000001"]


def test_events_are_written_beside_the_jobs(folder: Folder) -> None:
    folder("pick", "--agent-session", LABEL)
    # Nobody is at the broker: the event is kept all the same.
    assert folder("publish", "--detail", "half", "--", "-zy98_76", "progress").status == 6
    assert folder("publish", "--", "-zy98_76", "completed").status == 6
    logged = [
        json.loads(line) for line in (folder.jobs / "-zy98_76.events.log").read_text().splitlines()
    ]
    assert [(one["seq"], one["event"], one["detail"]) for one in logged] == [
        (5, "progress", "half"),
        (6, "completed", ""),
    ]
    assert all(one["sig"] for one in logged)
    assert folder.read("-zy98_76")["last_seq"] == 6
    logs = folder.folder / ".hermes" / "delegate_job_logs" / "-zy98_76"
    assert {path.name for path in logs.iterdir()} == {"meta.json", "events.ndjson", "status.json"}
    assert json.loads((logs / "status.json").read_text())["status"] == "completed"
    assert folder("logs", "--", "-zy98_76").out.count("\n") == 4


def test_a_worker_does_the_jobs_of_a_folder(folder: Folder) -> None:
    command = ["sh", "-c", "touch sort_problems.md; echo sorted"]
    ran = folder.module("run", "--agent-session", LABEL, "--once", "--", *command)
    assert (ran.status, ran.out) == (0, "sorted\n"), ran.err
    after = folder.read("-zy98_76")
    assert (after["status"], after["result"], after["reviewers"]) == (
        "completed",
        "sorted",
        record("x")["reviewers"],
    )


def test_a_lock_that_the_other_program_holds_is_waited_for_and_disturbs_no_reader(
    folder: Folder,
) -> None:
    with ThreadPoolExecutor(1) as pool, (folder.jobs / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        picking = pool.submit(folder, "pick", "--agent-session", LABEL)
        until(lambda: flock_waiters(folder.jobs / ".lock") or picking.done())
        assert not picking.done()
        assert folder("list").status == 0
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert picking.result(PATIENCE_S).out == "-zy98_76\n"
    assert (folder.jobs / ".abc12345.x7f.tmp").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b'{"job_id": "bad00000',
        json.dumps(record("other")).encode(),
        b'{"job_id": "bad00000"}',
        json.dumps(
            record("bad00000", created_at="2019-01-01T00:00:00Z", schema_version=2)
        ).encode(),
        json.dumps(record("bad00000", priority=10**30)).encode(),
        json.dumps(record("bad00000", agent_session="x" * 10_000)).encode(),
        json.dumps(
            record("bad00000", created_at="2019-01-01T00:00:00Z", prompt="x" * (2 << 20))
        ).encode(),
    ],
    ids=[
        "empty",
        "cut",
        "another's",
        "too little",
        "newer",
        "beyond numbers",
        "a label too long",
        "too large",
    ],
)
def test_a_damaged_record_hides_no_other(folder: Folder, data: bytes) -> None:
    (folder.jobs / "bad00000.json").write_bytes(data)
    ran = folder("list")
    assert (ran.status, len(listed(ran))) == (7, 3)
    assert "bad00000" in ran.err
    ran = folder("get", "--job", "bad00000")
    assert (ran.status, ran.out) == (7, "") and "bad00000" in ran.err
    assert folder("status", "--job", "bad00000", "--set", "completed").status == 7
    assert folder("pick", "--agent-session", LABEL).out == "-zy98_76\n"
    assert folder("status", "--job", "-zy98_76", "--set", "completed").status == 0
    assert (folder.jobs / "bad00000.json").read_bytes() == data


def test_a_job_with_an_invalid_id_is_damaged(folder: Folder) -> None:
    (folder.jobs / "a%20b.json").write_text(
        json.dumps(record("a b", created_at="2019-01-01T00:00:00Z"))
    )
    ran = folder("list")
    assert (ran.status, len(listed(ran))) == (7, 3)
    assert folder("pick", "--agent-session", LABEL).out == "-zy98_76\n"


def test_secrets_stay_in_the_record(folder: Folder) -> None:
    said = [
        folder("list", "--json"),
        folder("pick", "--agent-session", LABEL, "--json"),
        folder("list"),
    ]
    said += [
        folder("publish", "--", "-zy98_76", "progress"),
        folder("get", "--job", "-zy98_76", "--json"),
    ]
    said += [
        folder("status", "--job", "-zy98_76", "--set", "completed"),
        folder("logs", "--json", "--", "-zy98_76"),
    ]
    said += [folder("get", "--job", "abc12345"), folder("logs", "--rebuild")]
    # The broker is away (6), and all else went well.
    assert {ran.status for ran in said} == {0, 6}
    for secret in (PASSWORD, KEY):
        assert not [ran for ran in said if secret in ran.out + ran.err]
        records = {
            folder.jobs / f"{job_id}.json" for job_id in ("abc12345", "-zy98_76", "_0000001")
        }
        assert {path for path in folder.files() if secret.encode() in path.read_bytes()} == records


def test_what_it_writes_is_the_owners_alone(folder: Folder) -> None:
    old = os.umask(0)
    try:
        job_id = folder("register", "--prompt", "x", "--agent-session", LABEL).out.strip()
        folder("pick", "--agent-session", LABEL)
        folder("publish", "--", "-zy98_76", "progress")
    finally:
        os.umask(old)
    made = [folder.jobs / f"{name}.json" for name in (job_id, "-zy98_76")] + [
        folder.jobs / "-zy98_76.events.log"
    ]
    made += [
        path for path in folder.files() if {".holdfast", "delegate_job_logs"} & set(path.parts)
    ]
    assert {path: oct(path.stat().st_mode & 0o777) for path in made} == dict.fromkeys(made, "0o600")
    assert folder.read(job_id)["auth_token"]
