"""The audit log: plain files that follow the journal, outlive the registry, and never break what
they tell of.
"""

import json
import multiprocessing
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import holdfast as library
from holdfast.adapters import job_log
from holdfast.adapters.job_log import JobLog
from holdfast.kernel.errors import LockTimeout, status_of
from holdfast.kernel.store import Batch, Entry
from holdfast.surfaces.cli.root import run
from holdfast.system import flock
from tests.harness.timeouts import PATIENCE_S
from tests.surfaces.command import CommandLine

LABEL = "tmux:a"
NOWHERE = {"MQTT_BROKER": "127.0.0.1", "MQTT_PORT": "9"}


@pytest.fixture
def holdfast(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path, HOLDFAST_STORE=f"sqlite:{tmp_path}/store.sqlite", **NOWHERE)


def register(holdfast: CommandLine) -> str:
    return holdfast("jobs", "register", "--prompt", "sort it", "--agent-session", LABEL).out.strip()


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (path / "events.ndjson").read_text().splitlines()]


def test_what_lies_where(holdfast: CommandLine, tmp_path: Path) -> None:
    job_id = register(holdfast)
    holdfast("jobs", "pick", "--agent-session", LABEL)
    holdfast("jobs", "status", "--job", job_id, "--set", "completed")
    home = tmp_path / "store.sqlite-job-logs" / job_id
    assert sorted(path.name for path in home.iterdir()) == [
        "events.ndjson",
        "meta.json",
        "status.json",
    ]
    meta = json.loads((home / "meta.json").read_text())
    assert (meta["job_id"], meta["prompt"], meta["status"], meta["attempt"]) == (
        job_id,
        "sort it",
        "pending",
        0,
    )
    assert "auth_token" not in meta
    assert json.loads((home / "status.json").read_text())["status"] == "completed"
    reported = lines(home)
    assert [line["event"] for line in reported] == [
        "registered",
        "status_changed",
        "status_changed",
    ]
    assert [(line.get("from"), line.get("to")) for line in reported[1:]] == [
        ("pending", "running"),
        ("running", "completed"),
    ]
    assert all(path.stat().st_mode & 0o077 == 0 for path in (home, *home.iterdir()))
    shown = holdfast("jobs", "logs", job_id, "--tail", "1").out
    assert shown.count("\n") == 1
    assert "running -> completed, attempt 1" in shown
    assert holdfast("jobs", "logs", "--list").out.split("\t")[:2] == [job_id, "completed"]


def test_it_outlives_the_registry_and_can_be_put_elsewhere(
    holdfast: CommandLine, tmp_path: Path
) -> None:
    holdfast.environment["DELEGATE_JOB_LOGS_DIR"] = str(tmp_path / "elsewhere")
    job_id = register(holdfast)
    holdfast("jobs", "cancel", "--job", job_id)
    for path in tmp_path.glob("store.sqlite*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert holdfast("jobs", "get", "--job", job_id).status == 1
    assert [
        json.loads(line)["event"]
        for line in holdfast("jobs", "logs", job_id, "--json").out.splitlines()
    ] == [
        "registered",
        "status_changed",
    ]
    assert json.loads(holdfast("jobs", "logs", "--list", "--json").out)[0]["status"] == "cancelled"


def test_a_folder_that_cannot_be_written_is_a_warning_and_the_job_runs(
    holdfast: CommandLine, tmp_path: Path
) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    holdfast.environment["DELEGATE_JOB_LOGS_DIR"] = str(in_the_way / "logs")
    ran = holdfast("jobs", "register", "--prompt", "x", "--agent-session", LABEL)
    assert ran.status == 0
    job_id = ran.out.strip()
    assert "the audit log" in ran.err
    assert "jobs logs --rebuild" in ran.err
    ran = holdfast("jobs", "run", "--agent-session", LABEL, "--once", "--", "echo", "fine")
    assert (ran.status, ran.out) == (0, "fine\n")
    refused = holdfast("jobs", "logs", "--rebuild")
    assert refused.status == 6
    assert "DELEGATE_JOB_LOGS_DIR" in refused.err
    in_the_way.unlink()
    rebuilt = holdfast("jobs", "logs", "--rebuild", "--json")
    assert json.loads(rebuilt.out) == {"jobs": 1, "folder": str(in_the_way / "logs")}
    assert [line["event"] for line in lines(in_the_way / "logs" / job_id)] == [
        *("registered", "status_changed", "published"),
        *("published", "status_changed"),
    ]
    assert (
        json.loads((in_the_way / "logs" / job_id / "status.json").read_text())["status"]
        == "completed"
    )


def test_a_folder_whose_name_is_not_utf_8_is_shown(holdfast: CommandLine, tmp_path: Path) -> None:
    holdfast.environment["DELEGATE_JOB_LOGS_DIR"] = f"{tmp_path}/odd-\udcff"
    register(holdfast)
    rebuilt = json.loads(holdfast("jobs", "logs", "--rebuild", "--json").out)
    assert rebuilt == {"jobs": 1, "folder": f"{tmp_path}/odd-\\udcff"}


def test_a_store_whose_name_is_not_utf_8_has_a_log(tmp_path: Path) -> None:
    holdfast = CommandLine(
        tmp_path, HOLDFAST_STORE=f"sqlite:{tmp_path}/odd-\udcff.sqlite", **NOWHERE
    )
    job_id = register(holdfast)
    assert json.loads(holdfast("jobs", "logs", job_id, "--json").out)["event"] == "registered"


def test_rebuilding_restores_what_was_damaged_and_keeps_what_is_older_than_the_journal(
    tmp_path: Path,
) -> None:
    with library.connect(f"sqlite:{tmp_path}/s.sqlite") as hf:
        log = JobLog(tmp_path / "logs", store="s")
        job = hf.jobs.register_job("x", agent="a", agent_session="s")
        assert log.catch_up(hf.log, hf.jobs.peek) is None
        before = list(log.events(job.job_id))
        hf.jobs.cancel(job.job_id)
        hf.log.prune(keep_entries=1)
        (tmp_path / "logs" / job.job_id / "status.json").write_text("{half")
        with (tmp_path / "logs" / job.job_id / "events.ndjson").open("a") as file:
            file.write('{"torn": ')
        assert log.rebuild(hf.log, hf.jobs.peek) == 1
        after = list(log.events(job.job_id))
        assert after[:1] == before
        assert [line["event"] for line in after] == ["registered", "status_changed"]
        assert (log.status(job.job_id) or {})["status"] == "cancelled"
        assert log.catch_up(hf.log, hf.jobs.peek) is None
        assert list(log.events(job.job_id)) == after


def test_one_that_was_killed_before_it_kept_its_place_repeats_nothing(tmp_path: Path) -> None:
    with library.connect(f"sqlite:{tmp_path}/s.sqlite") as hf:
        log = JobLog(tmp_path / "logs", store="s")
        ids = [hf.jobs.register_job("x", agent="a", agent_session="s").job_id for _ in range(3)]
        hf.jobs.cancel(ids[0])
        log.catch_up(hf.log, hf.jobs.peek)
        for cursor in (tmp_path / "logs").glob(".cursor-*"):
            cursor.unlink()
        with (tmp_path / "logs" / ids[1] / "events.ndjson").open("a") as file:
            file.write('{"revision": 5, "ha')
        hf.jobs.cancel(ids[1])
        log.catch_up(hf.log, hf.jobs.peek)
        logged = {job_id: [line["event"] for line in log.events(job_id)] for job_id in ids}
        assert logged == {
            ids[0]: ["registered", "status_changed"],
            ids[1]: ["registered", "status_changed"],
            ids[2]: ["registered"],
        }
        assert log.jobs() == sorted(ids)


class _Journal:
    """A journal of these entries, in one batch."""

    def __init__(self, *entries: Entry) -> None:
        self.entries = list(entries)

    def since(self, cursor: str = "") -> Iterator[Batch]:
        known = int(cursor or 0)
        if known < len(self.entries):
            yield Batch(self.entries[known:], str(len(self.entries)))


def _entry(revision: int, kind: str, at: int, **data: Any) -> Entry:
    moment = datetime(2026, 6, 19, 9, 30, at, tzinfo=UTC)
    return Entry(
        revision=revision, at=moment, actor="me", kind=f"job.{kind}", subject="j1", data=data
    )


def _nobody(_: str) -> None:
    return None


def test_entries_of_one_transaction_are_all_written_also_after_a_kill_between_them(
    tmp_path: Path,
) -> None:
    log = JobLog(tmp_path, store="s")
    first, second = _entry(7, "published", 1, seq=1), _entry(7, "status_changed", 1, to="running")
    logged: Any = _Journal(first)
    assert log.catch_up(logged, _nobody) is None
    # Killed behind the first line, and before the place was kept.
    [place] = tmp_path.glob(".cursor-*")
    place.unlink()
    logged.entries.append(second)
    assert log.catch_up(logged, _nobody) is None
    assert [line["event"] for line in log.events("j1")] == ["published", "status_changed"]
    assert (log.status("j1") or {})["status"] == "running"


def test_two_stores_that_share_a_folder_and_the_id_of_a_job_lose_no_line_of_each_other(
    tmp_path: Path,
) -> None:
    here, there = JobLog(tmp_path, store="here"), JobLog(tmp_path, store="there")
    mine: Any = _Journal(
        _entry(900, "registered", 1), _entry(901, "status_changed", 3, to="running")
    )
    theirs: Any = _Journal(
        _entry(5, "registered", 2), _entry(6, "status_changed", 4, to="cancelled")
    )
    for log, reported in ((here, mine), (there, theirs)):
        assert log.catch_up(reported, _nobody) is None
    assert [line["revision"] for line in here.events("j1")] == [900, 901, 5, 6]
    with (tmp_path / "j1" / "events.ndjson").open("a") as file:
        file.write('{"event": "received", "timestamp": "2026-06-19T09:30:05Z"}\n')
    assert there.rebuild(theirs, _nobody) == 1
    assert [line.get("revision") for line in here.events("j1")] == [900, 5, 901, 6, None]
    assert here.catch_up(mine, _nobody) is None
    assert len(list(here.events("j1"))) == 5


def test_a_removed_job_of_another_program_is_logged(holdfast: CommandLine, tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    record = {
        "schema_version": 1,
        "job_id": "theirs",
        "status": "error",
        "prompt": "x",
        "agent": "a",
        "agent_session": "s",
    }
    record |= {"created_at": "2020-06-19T09:30:00Z", "updated_at": "2020-06-19T09:32:00Z"}
    (folder / "theirs.json").write_text(json.dumps(record))
    there = ("--registry-dir", str(folder))
    # Without an age that somebody names, the last ones stay however old; without --adopted, those
    # of others.
    for asked in (["--adopted"], ["--keep-days", "30"]):
        assert holdfast("jobs", "prune", *asked, *there).out == "0 jobs removed\n"
        assert (folder / "theirs.json").exists()
    assert (
        holdfast("jobs", "prune", "--adopted", "--keep-days", "30", *there).out == "1 job removed\n"
    )
    assert not (folder / "theirs.json").exists()
    assert (
        "removed         from the registry, error" in holdfast("jobs", "logs", "theirs", *there).out
    )
    assert holdfast("jobs", "logs", "--list", *there).out.split("\t")[:2] == ["theirs", "error"]
    meta = json.loads((tmp_path / "delegate_job_logs" / "theirs" / "meta.json").read_text())
    assert (meta["created_at"], meta["agent_session"]) == ("2020-06-19T09:30:00.000000Z", "s")


THEIRS = [
    {"ts": "2026-06-19T09:30:00Z", "event": "registered"},
    {"ts": "2026-06-19T09:31:00Z", "event": "status_changed", "from": "pending", "to": "running"},
    [1, 2],
    {"timestamp": 5, "event": ["odd"], "payload": 7},
]


def test_a_log_that_another_program_wrote_is_read_as_far_as_it_goes(
    holdfast: CommandLine, tmp_path: Path
) -> None:
    logs = tmp_path / ".hermes" / "delegate_job_logs"
    for name, status in (
        ("told", {"status": "completed"}),
        ("mute", ["completed"]),
        ("odd", {"status": 3}),
        ("no job", {}),
    ):
        (logs / name).mkdir(parents=True)
        (logs / name / "status.json").write_text(json.dumps(status))
    (logs / "told" / "events.ndjson").write_text(
        "".join(json.dumps(line) + "\n" for line in THEIRS)
    )
    where = ("--registry-dir", str(tmp_path / ".hermes" / "jobs"))
    assert (
        holdfast(
            "jobs", "register", "--id", "ours", "--prompt", "x", "--agent-session", "a", *where
        ).status
        == 0
    )
    listed = holdfast("jobs", "logs", "--list", *where)
    assert [line.split("\t")[:2] for line in listed.out.splitlines()] == [
        ["mute", "unknown"],
        ["odd", "unknown"],
        ["ours", "pending"],
        ["told", "completed"],
    ]
    shown = holdfast("jobs", "logs", "told", *where)
    assert (shown.status, shown.err) == (0, "")
    assert [line.split()[:3] for line in shown.out.splitlines()[:2]] == [
        ["-", "registered"],
        ["-", "status_changed", "pending"],
    ]
    assert "None" not in shown.out


def _crowd(task: tuple[str, str]) -> None:
    url, folder = task
    with library.connect(url) as hf:
        log = JobLog(Path(folder), store="s")
        for _ in range(15):
            job = hf.jobs.register_job("x", agent="a", agent_session="s")
            log.catch_up(hf.log, hf.jobs.peek, wait=False)
            hf.jobs.cancel(job.job_id)
            log.catch_up(hf.log, hf.jobs.peek)


@pytest.mark.prove
def test_a_log_that_cannot_be_written_is_reported_once(holdfast: CommandLine) -> None:
    blocked = holdfast.folder / "blocked"
    blocked.write_text("")
    holdfast.environment["DELEGATE_JOB_LOGS_DIR"] = str(blocked)
    ran = holdfast("jobs", "register", "--prompt", "sort it", "--agent-session", LABEL)
    assert ran.status == 0
    assert ran.err.count("cannot be written") == 1 and ran.err.startswith(
        "holdfast: the audit log"
    ), ran.err
    ran = holdfast("jobs", "run", "--agent-session", LABEL, "--wait", "0", "--", "true")
    assert (ran.status, ran.err.count("cannot be written")) == (0, 1), ran.err


def test_a_disk_that_takes_a_part_loses_no_line(tmp_path: Path) -> None:
    import resource

    with library.connect("memory:") as hf:
        log = JobLog(tmp_path / "logs", store="s")
        job = hf.jobs.register_job("sort it", agent="agent", agent_session="a")
        assert log.catch_up(hf.log, hf.jobs.peek) is None
        for number in range(20):
            hf.job_events.publish(job.job_id, "progress", detail=f"{number} " + 200 * "x")
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, limits[1]))
        try:
            assert "cannot be written" in (log.catch_up(hf.log, hf.jobs.peek) or "")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert log.catch_up(hf.log, hf.jobs.peek) is None
        logged = [
            line["payload"]["seq"]
            for line in log.events(job.job_id)
            if line["event"] == "published"
        ]
        assert logged == list(range(1, 21))


def test_several_processes_write_each_line_once_and_in_order(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/s.sqlite"
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        pool.map_async(_crowd, [(url, str(tmp_path / "logs"))] * 4).get(PATIENCE_S)
    with library.connect(url) as hf:
        log = JobLog(tmp_path / "logs", store="s")
        logged = [entry for batch in hf.log.since() for entry in batch.entries]
        assert len(log.jobs()) == 60
        for job_id in log.jobs():
            assert [line["revision"] for line in log.events(job_id)] == [
                e.revision for e in logged if e.subject == job_id
            ]


def test_events_of_a_folder_of_jobs_are_written_beside_it_too(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    with library.connect(f"sqlite:{tmp_path}/s.sqlite") as hf:
        log = JobLog(tmp_path / "logs", store="s", beside=tmp_path / "jobs")
        job = hf.jobs.register_job("x", agent="a", agent_session="s")
        hf.job_events.publish(job.job_id, "started")
        log.catch_up(hf.log, hf.jobs.peek)
        hf.job_events.publish(job.job_id, "completed", detail="done")
        log.catch_up(hf.log, hf.jobs.peek)
        logged = (tmp_path / "jobs" / f"{job.job_id}.events.log").read_text().splitlines()
        assert [(json.loads(line)["seq"], json.loads(line)["event"]) for line in logged] == [
            (1, "started"),
            (2, "completed"),
        ]


def test_a_watcher_of_a_removed_job_learns_how_it_ended(
    holdfast: CommandLine,
) -> None:
    for job_id, status in (("done-1", "completed"), ("bad-1", "error")):
        holdfast("jobs", "register", "--id", job_id, "--prompt", "x", "--agent-session", "s")
        holdfast("jobs", "pick", "--agent-session", "s")
        assert holdfast("jobs", "status", "--job", job_id, "--set", status).status == 0
    assert json.loads(holdfast("jobs", "prune", "--keep", "0", "--json").out) == {"removed": 2}
    assert holdfast("jobs", "watch", "done-1") == (
        0,
        "done-1 is completed, and removed from the registry since\n",
        "",
    )
    assert holdfast("jobs", "watch", "done-1", "bad-1", "--json").status == 1
    assert json.loads(holdfast("jobs", "watch", "bad-1", "--json").out) == {
        "job_id": "bad-1",
        "status": "error",
    }
    ran = holdfast("jobs", "watch", "done-1", "never-1")
    assert ran.status == 1 and "there is no job never-1" in ran.err


def test_bad_input(holdfast: CommandLine) -> None:
    for words, status, says in (
        (["logs"], 2, "--list"),
        (["logs", "x", "--list"], 2, "--list"),
        (["logs", "--list", "--tail", "3"], 2, "--tail"),
        (["logs", "nosuch"], 1, "no job nosuch is logged"),
        (["logs", "../../etc"], 2, "job id"),
        (["logs", "--list", "--store", "memory:"], 1, "keeps nothing"),
        (["list", "--registry-dir", "x", "--store", "memory:"], 2, "--registry-dir"),
        (["list", "--registry-dir", ""], 2, "--registry-dir"),
    ):
        ran = holdfast("jobs", *words)
        assert (ran.status, says in ran.err) == (status, True), (words, ran)
        assert "Traceback" not in ran.err


def test_a_writer_stopped_while_it_writes_blocks_nobody_for_ever(
    holdfast: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of an agent's calls about jobs waited for it, without an end."""
    register(holdfast)
    hurried = partial(flock.FlockGuard, timeout_s=0.05)
    monkeypatch.setattr(job_log, "FlockGuard", hurried, raising=False)
    log, reported = JobLog(tmp_path / "logs", store="s"), []
    with library.connect(f"sqlite:{tmp_path}/store.sqlite") as hf:
        assert log.catch_up(hf.log, hf.jobs.peek) is None
        with closing(flock.FlockLock(tmp_path / "logs" / ".lock").contender()) as stopped:
            assert stopped.try_take()
            assert log.catch_up(hf.log, hf.jobs.peek, wait=False) is None
            asked = threading.Thread(
                target=lambda: reported.append(log.catch_up(hf.log, hf.jobs.peek)), daemon=True
            )
            asked.start()
            asked.join(PATIENCE_S)
    assert [words and ".lock" in words for words in reported] == [True]


def test_a_full_disk_leaves_no_drafts_behind(
    holdfast: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(holdfast)
    log = JobLog(tmp_path / "logs", store="s")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with library.connect(f"sqlite:{tmp_path}/store.sqlite") as hf:
        monkeypatch.setattr(os, "rename", full)
        for _ in range(3):
            assert "No space left" in (log.catch_up(hf.log, hf.jobs.peek) or "")
        monkeypatch.undo()
        files = {path.name for path in (tmp_path / "logs").rglob("*") if path.is_file()}
        assert files == {".lock"}
        assert log.catch_up(hf.log, hf.jobs.peek) is None


def test_a_rebuild_that_times_out_reports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LockTimeout is an OSError too: the log's folder must not be blamed for it."""
    monkeypatch.setenv("HOLDFAST_STORE", f"sqlite:{tmp_path}/store.sqlite")
    with library.connect() as hf:
        assert hf.job_log is not None
        hf.jobs.register_job("sort it", agent="a", agent_session=LABEL)
        hf.job_log.folder.mkdir(exist_ok=True)
        monkeypatch.setattr(job_log, "FlockGuard", partial(flock.FlockGuard, timeout_s=0.05))
        with closing(flock.FlockLock(hf.job_log.folder / ".lock").contender()) as stopped:
            assert stopped.try_take()
            with pytest.raises(LockTimeout) as caught:
                run(["jobs", "logs", "--rebuild"])
    assert status_of(caught.value).exit == 5
