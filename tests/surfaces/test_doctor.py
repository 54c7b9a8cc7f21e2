"""The doctor, with each fault made for real: it finds it, says how to fix it, and changes
nothing.
"""

import grp
import json
import os
import pwd
import re
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

import holdfast
from holdfast.kernel.clock import SystemClock
from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import StoreCorrupt, StoreUnavailable
from holdfast.kernel.holder import Holder
from holdfast.kernel.limits import DOCTOR_CHECK_S
from holdfast.kernel.text import installing
from holdfast.runtime.connection import Holdfast
from holdfast.runtime.doctor import Finding, Severity, examine, machine, records
from holdfast.runtime.doctor import store as stored
from holdfast.runtime.doctor.finding import exit_status, ok, within
from holdfast.runtime.metrics import sources
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.stores.sqlite.wal import log_size
from holdfast.testing.clock import ManualClock
from tests.harness.disk import mounted
from tests.harness.stopped_processes import StoppedInside, stop_outside
from tests.harness.timeouts import PATIENCE_S, until
from tests.harness.tmux_server import tmux_server
from tests.hazards.gateway_process import AGENT, GatewayProcess
from tests.stores.postgres_server import Server
from tests.surfaces.broker import USER, Broker, running
from tests.surfaces.command import CommandLine

NOBODY = 65534


class Clinic:
    """A store in a folder of its own, and its examination."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "state"
        self.url = f"sqlite:{self.folder}/store.sqlite"
        self.path = self.folder / "store.sqlite"

    def connect(self) -> Holdfast:
        return holdfast.connect(self.url)

    def used(self) -> str:
        """Make it, with a job and its audit log; return the job's id."""
        with self.connect() as hf:
            job_id = hf.jobs.register_job("x", agent="a", agent_session="tmux:a").job_id
            assert hf.job_log is not None and hf.job_log.catch_up(hf.log, hf.jobs.peek) is None
            hf.locks.acquire("router-1", by="job").release()
        return job_id

    def look(self, check: str | None = None) -> list[Finding]:
        """What is found, of one check or that is not well."""
        found = list(examine(self.url))
        return [
            one
            for one in found
            if (one.check == check if check else one.verdict is not Severity.OK)
        ]

    def only(self, check: str) -> Finding:
        """The one thing that is wrong, which one check has found."""
        found = self.look()
        assert [one.check for one in found] == [check], found
        return found[0]


@pytest.fixture
def clinic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clinic:
    monkeypatch.setenv("TMUX_TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    # A slow disk of this machine would add a finding to those that a test makes.
    monkeypatch.setattr(stored, "_SLOW_S", PATIENCE_S)
    return Clinic(tmp_path)


def a_dead_process(hf: Holdfast) -> Holder:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    holder = hf.processes.of(process.pid)
    process.communicate(b"\n")
    return holder


# --- nothing wrong ---


def test_all_is_well_with_a_store_in_use(clinic: Clinic, tmp_path: Path) -> None:
    clinic.used()
    ran = CommandLine(tmp_path, HOLDFAST_STORE=clinic.url, TMUX_TMPDIR=str(tmp_path))("doctor")
    assert ran.status == 0, ran.out
    lines = ran.out.splitlines()
    assert lines[-1] == "all well" and ran.err == ""
    assert {line.split()[0] for line in lines[:-1]} == {"ok"}
    checks = [line.split()[1] for line in lines[:-1]]
    assert checks == [
        *(
            "settings",
            "machine",
            "extras",
            "disk",
            "permissions",
            "log",
            "gate",
            "store",
            "schema",
            "records",
            "queues",
        ),
        *("clock", "leftovers", "journal", "tmux", "broker", "gateways", "server"),
    ]


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_looking_changes_nothing(clinic: Clinic, tmp_path: Path, kind: str) -> None:
    if kind == "files":
        clinic.url, clinic.folder = f"files:{tmp_path}/plain", tmp_path / "plain"
    with clinic.connect() as hf:
        hf.jobs.register_job("x", agent="a", agent_session="tmux:a")

    def there() -> tuple[object, ...]:
        names = sorted(
            (path, path.stat().st_mode)
            for path in clinic.folder.rglob("*")
            if path.name[-4:] not in ("-wal", "-shm")
        )
        with clinic.connect() as hf:
            return names, hf.log.tail(1000), hf.jobs.counts()

    before = there()
    assert clinic.look() == []
    assert there() == before


def test_a_store_that_is_not_there_is_not_made(clinic: Clinic) -> None:
    assert clinic.look() == []
    assert "none yet" in clinic.look("store")[0].says
    assert not clinic.folder.exists()


def test_programs_read_json(clinic: Clinic, tmp_path: Path) -> None:
    clinic.used()
    clinic.path.chmod(0o644)
    ran = CommandLine(tmp_path, HOLDFAST_STORE=clinic.url, TMUX_TMPDIR=str(tmp_path))(
        "doctor", "--json"
    )
    document = json.loads(ran.out)
    assert ran.status == 4 and document["well"] is False
    wrong = [one for one in document["findings"] if one["verdict"] == "fail"]
    assert wrong == [
        {
            "check": "permissions",
            "verdict": "fail",
            "says": f"{clinic.path} has mode 0644: others may read it",
            "fix": f"chmod 600 {clinic.path}",
            "code": "refused",
        }
    ]


def test_a_narrow_terminal_shows_all_of_it(clinic: Clinic, tmp_path: Path) -> None:
    clinic.used()
    clinic.path.chmod(0o644)
    shown = CommandLine(tmp_path, HOLDFAST_STORE=clinic.url).on_a_terminal("doctor", columns=60)
    assert "chmod 600" in " ".join(shown.split())
    plain = re.sub(r"\x1b\[\d+m", "", shown).splitlines()
    assert [line for line in plain if len(line) > 60 and str(tmp_path) not in line] == []


# --- settings and machine ---


@pytest.mark.parametrize(
    ("content", "names"),
    [("color = 'red'\n", "color"), ("store = \n", "holdfast.toml"), ("[jobs]\nkeep = 1\n", "keep")],
)
def test_settings_that_are_not_understood(
    clinic: Clinic, tmp_path: Path, content: str, names: str
) -> None:
    (tmp_path / "holdfast.toml").write_text(content)
    ran = CommandLine(tmp_path)("doctor")
    assert ran.status == 2
    wrong = next(line for line in ran.out.splitlines() if line.startswith("fail"))
    assert wrong.split()[1] == "settings" and names in wrong


def test_a_machine_without_an_id_of_its_own(
    clinic: Clinic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HOST_ID", os.uname().nodename)
    assert "HOLDFAST_HOST_ID" in clinic.only("machine").fix


def test_an_extra_that_is_needed_and_not_there(
    clinic: Clinic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_installed", lambda name: name not in ("paho-mqtt", "psycopg"))
    monkeypatch.setenv("MQTT_BROKER", "127.0.0.1")
    found = [
        one for one in examine("postgresql://nobody@/none?host=/nowhere") if one.check == "extras"
    ]
    assert {one.fix for one in found} == {installing("postgres"), installing("mqtt")}
    assert machine.not_installed("server") == []


# --- the store ---


def test_a_read_only_store(clinic: Clinic, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=16m") as disk:
        clinic.folder = disk
        clinic.url, clinic.path = f"sqlite:{disk}/store.sqlite", disk / "store.sqlite"
        clinic.used()
        disk.chmod(0o700)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        found = {one.check: one for one in clinic.look()}
        assert found["disk"].verdict is Severity.FAIL and "remount,rw" in found["disk"].fix
        assert found["store"].verdict is Severity.FAIL
        assert exit_status(found.values()) == 6


def as_another_user(look: Callable[[], list[Finding]]) -> str:
    """What is found by a user whom permissions bind: root they do not."""
    # Once before, so that all it needs is loaded: that user may not read it.
    look()
    ours, theirs = os.pipe()
    if (child := os.fork()) == 0:
        try:
            if os.getuid() == 0:
                os.setresuid(NOBODY, NOBODY, NOBODY)
            os.write(
                theirs,
                "\n".join(
                    f"{one.check} {one.code} {one.says}; {one.fix}" for one in look()
                ).encode(),
            )
        finally:
            os._exit(0)
    os.close(theirs)
    output = os.read(ours, 10_000).decode()
    os.close(ours)
    os.waitpid(child, 0)
    return output


def opened_to_all(folder: Path) -> None:
    for parent in list(folder.parents)[:5]:
        with suppress(PermissionError):
            parent.chmod(parent.stat().st_mode | 0o055)


def test_a_store_that_this_user_may_not_write(clinic: Clinic) -> None:
    clinic.used()
    for path in (clinic.folder, *clinic.folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    opened_to_all(clinic.folder)
    answer = as_another_user(lambda: clinic.look("store"))
    clinic.folder.chmod(0o755)
    assert answer.startswith("store store_unavailable") and "permissions" in answer, answer
    assert (
        f"is of {pwd.getpwuid(os.getuid()).pw_name} with mode 0" in answer
        and "as its owner" in answer
    ), answer


def test_a_store_that_this_user_may_not_make(clinic: Clinic) -> None:
    clinic.folder.mkdir()
    opened_to_all(clinic.folder)
    clinic.folder.chmod(0o555)
    reported = as_another_user(clinic.look)
    clinic.folder.chmod(0o755)
    assert reported.startswith(
        f"store store_unavailable there is none yet, and {clinic.path} cannot be made"
    ), reported
    assert "journal" not in reported, reported


def test_a_full_disk(clinic: Clinic, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=4m", "mode=700") as disk:
        clinic.url, clinic.path = f"sqlite:{disk}/store.sqlite", disk / "store.sqlite"
        clinic.used()
        with open(disk / "ballast", "wb") as file, suppress(OSError):
            while True:
                file.write(b"x" * 65536)
                file.flush()
        found = {one.check: one for one in clinic.look()}
        assert "no room left" in found["disk"].says and found["disk"].verdict is Severity.FAIL


def test_a_failure_common_to_all_kinds_of_record_is_reported_once(
    clinic: Clinic, monkeypatch: pytest.MonkeyPatch
) -> None:
    clinic.used()

    def full(*_: object, **__: object) -> NoReturn:
        raise StoreUnavailable("no space left to write x: free some")

    monkeypatch.setattr(SqliteStore, "read", full)
    found = clinic.only("schema")
    assert (found.says, found.fix) == ("no space left to write x", "free some")


def test_a_disk_with_little_room(clinic: Clinic, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=16m", "mode=700") as disk:
        clinic.url = f"sqlite:{disk}/store.sqlite"
        clinic.used()
        assert clinic.only("disk").verdict is Severity.WARN


def test_a_network_file_system(clinic: Clinic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "type_of", lambda folder: "nfs4")
    clinic.used()
    assert "PostgreSQL" in clinic.only("disk").fix


def test_a_store_in_memory_keeps_nobody_apart(clinic: Clinic, tmp_path: Path) -> None:
    clinic.url = "memory:"
    assert clinic.only("store").verdict is Severity.WARN
    run = CommandLine(tmp_path)("locks", "run", "router-1", "--store", "memory:", "--", "true")
    assert (run.status, "keeps nobody apart" in run.err) == (0, True)


@pytest.mark.parametrize(
    ("takes_s", "tries", "verdict"),
    [
        ([0.6, 0.6, 0.1], 3, Severity.OK),
        ([0.6, 0.6, 0.6, 0.1], 3, Severity.WARN),
        ([2.5, 0.1], 1, Severity.WARN),
    ],
    ids=["at-times", "always", "no-time-left"],
)
def test_a_store_is_slow_if_it_is_slow_each_time(
    clinic: Clinic,
    monkeypatch: pytest.MonkeyPatch,
    takes_s: list[float],
    tries: int,
    verdict: Severity,
) -> None:
    clinic.used()
    monkeypatch.setattr(stored, "_SLOW_S", 0.5)
    now_s = 0.0
    ends_s: list[float] = []
    transact = SqliteStore.transact

    def late(store: SqliteStore, *args: Any, timeout_s: float, **kwargs: Any) -> Any:
        nonlocal now_s
        ends_s.append(now_s + timeout_s)
        now_s += takes_s[len(ends_s) - 1]
        return transact(store, *args, timeout_s=timeout_s, **kwargs)

    with clinic.connect() as hf:
        monkeypatch.setattr(SqliteStore, "transact", late)
        monkeypatch.setattr(stored, "time", SimpleNamespace(perf_counter=lambda: now_s))
        assert [one.verdict for one in stored.store(hf)] == [verdict]
        monkeypatch.undo()
    # Each try may take what is left of the check's time.
    assert ends_s == pytest.approx([DOCTOR_CHECK_S * 0.8] * tries)


def test_a_damaged_store(clinic: Clinic) -> None:
    clinic.used()
    clinic.path.write_bytes(b"not a database at all, " * 400)
    found = clinic.only("store")
    assert found.code == "store_corrupt" and "restore" in found.fix
    assert exit_status([found]) == 7


def test_a_store_damaged_in_the_middle_is_reported_once(clinic: Clinic) -> None:
    clinic.used()
    content = bytearray(clinic.path.read_bytes())
    content[4096 * 2 : 4096 * 4] = b"\xff" * 8192
    clinic.path.write_bytes(content)
    found = clinic.only("schema")
    assert found.code == "store_corrupt" and "restore" in found.fix


def test_a_damaged_file_of_locks_is_replaced_by_an_empty_one(clinic: Clinic) -> None:
    clinic.used()
    [path] = clinic.folder.glob("*.locks-*.sqlite")
    path.write_bytes(b"not a database at all, " * 400)
    found = clinic.only("clock")
    [command] = re.findall("`(rm [^`]+)`", found.fix)
    assert found.code == "store_corrupt" and "restore" not in found.fix
    subprocess.run(command, shell=True, check=True)
    with clinic.connect() as hf:
        hf.locks.acquire("router-1", by="job").release()
    assert clinic.look() == []


def test_a_damaged_store_is_not_taken_for_its_locks(clinic: Clinic) -> None:
    with clinic.connect() as hf:
        hf.jobs.register_job("x", agent="a", agent_session="tmux:a")
    content = bytearray(clinic.path.read_bytes())
    content[4096 * 2 : 4096 * 4] = b"\xff" * 8192
    clinic.path.write_bytes(content)
    with clinic.connect() as hf, pytest.raises(StoreCorrupt, match=r"store\.sqlite is damaged"):
        hf.locks.acquire("router-1", by="job")


@pytest.mark.parametrize(
    "newer",
    ["PRAGMA user_version = 99", "UPDATE spaces SET schema_version = 99 WHERE name = 'jobs'"],
)
def test_a_store_of_a_newer_program(clinic: Clinic, newer: str) -> None:
    clinic.used()
    raw = sqlite3.connect(clinic.path)
    with raw:
        raw.execute(newer)
    raw.close()
    found = clinic.look()
    assert {one.code for one in found} == {"schema_too_new"} and "newer holdfast" in found[0].fix
    assert exit_status(found) == 7


@pytest.mark.parametrize(
    ("damage", "code"),
    [("{", "record_invalid"), ('{"schema_version": 99}', "schema_too_new")],
)
@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_an_agents_record_that_no_list_can_show(
    clinic: Clinic, tmp_path: Path, kind: str, damage: str, code: str
) -> None:
    """`agents list` ended with 7, and all was well."""
    if kind == "files":
        clinic.url, clinic.folder = f"files:{tmp_path}/plain", tmp_path / "plain"
    with clinic.connect() as hf:
        for name in ("gpu", "cpu"):
            agent = hf.agents.publish(name, backend="command", tool="t", manifest_path="/m")
    if kind == "files":
        [record] = clinic.folder.rglob(f"{agent.agent_id}/record.json")
        record.write_text(damage)
    else:
        with closing(sqlite3.connect(clinic.path)) as raw, raw:
            [[table]] = raw.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE '%agents'"
            ).fetchall()
            changed = raw.execute(
                f"UPDATE {table} SET value = ? WHERE key = ?", (damage.encode(), agent.agent_id)
            )
            assert changed.rowcount == 1
    command = CommandLine(tmp_path, HOLDFAST_STORE=clinic.url, TMUX_TMPDIR=str(tmp_path))
    assert command("agents", "list").status == 7
    assert command("doctor").status == 7
    [found] = clinic.look("schema")
    assert (
        (found.verdict, found.code) == (Severity.FAIL, code)
        and agent.agent_id in found.says
        and found.fix
    )


def test_a_writer_stopped_inside_a_transaction(clinic: Clinic) -> None:
    clinic.used()
    script = (
        "import sys, os, signal, holdfast\nhf = holdfast.connect(sys.argv[1])\n"
        "hf.store.transact(lambda tx: (os.write(1, b'in\\n'), os.kill(os.getpid(), "
        "signal.SIGSTOP)), scope=[])"
    )
    writer = subprocess.Popen([sys.executable, "-c", script, clinic.url], stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None and writer.stdout.readline() == b"in\n"
        begun_s = time.monotonic()
        [gate] = clinic.look("gate")
        assert gate.verdict is Severity.FAIL and gate.code == "lock_timeout"
        assert str(writer.pid) in gate.says and f"kill -CONT {writer.pid}" in gate.fix
        found = clinic.look("store")[0]
        assert time.monotonic() - begun_s < PATIENCE_S
        assert found.code == "lock_timeout" and str(writer.pid) in found.says + found.fix
        assert exit_status([found]) == 5
    finally:
        writer.kill()
        writer.communicate()


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_a_writer_that_is_stopped_is_named_with_its_gate(
    clinic: Clinic, tmp_path: Path, kind: str
) -> None:
    if kind == "files":
        clinic.url, clinic.folder = f"files:{tmp_path}/plain", tmp_path / "plain"
    clinic.used()
    with StoppedInside(clinic.url, "jobs") as writer:
        found = clinic.look("gate")
        assert found and all(
            one.verdict is Severity.FAIL and one.code == "lock_timeout" for one in found
        )
        assert all(
            str(writer.pid) in one.says and f"kill -CONT {writer.pid}" in one.fix for one in found
        )
        writer.go_on()
    assert [one.verdict for one in clinic.look("gate")] == [Severity.OK]


def test_a_log_that_a_stopped_reader_keeps(clinic: Clinic, monkeypatch: pytest.MonkeyPatch) -> None:
    clinic.used()
    monkeypatch.setattr(stored, "LOG_BYTES_KEPT", 100_000)
    with clinic.connect() as hf, StoppedInside(clinic.url, "jobs", call="read") as reader:
        while log_size(clinic.path) <= 100_000:
            hf.jobs.register_job("x" * 10_000, agent="a", agent_session="tmux:a")
        [found] = clinic.look("log")
        assert (
            found.verdict is Severity.WARN
            and f"process {reader.pid} is stopped inside a read" in found.says
        )
        assert f"kill -CONT {reader.pid}" in found.fix


@pytest.mark.prove
def test_a_session_that_keeps_others_out(clinic: Clinic, postgres_url: str) -> None:
    clinic.url = postgres_url
    with clinic.connect() as hf:
        hf.jobs.register_job("x", agent="a", agent_session="tmux:a")
    with StoppedInside(postgres_url, "jobs"):
        until(lambda: [one for one in clinic.look("gate") if one.verdict is Severity.WARN])
        [found] = clinic.look("gate")
        session = found.says.split()[1]
        assert f"pg_terminate_backend({session})" in found.fix
    until(lambda: [one.verdict for one in clinic.look("gate")] == [Severity.OK])


def test_a_hanging_part_is_left_behind_and_reported(clinic: Clinic) -> None:
    leave = threading.Event()
    begun_s = time.monotonic()
    found = within(0.2, "disk", lambda: [ok("in the end")] if leave.wait(PATIENCE_S) else [])
    leave.set()
    assert time.monotonic() - begun_s < PATIENCE_S
    assert (
        found[0].verdict is Severity.FAIL and "0.2 s" in found[0].says and exit_status(found) == 5
    )


def test_a_database_that_is_away(clinic: Clinic, tmp_path: Path) -> None:
    everything = list(examine(f"postgresql://nobody:hunter2@/none?host={tmp_path}"))
    found = [one for one in everything if one.verdict is Severity.FAIL]
    assert [one.check for one in found] == ["store"]
    assert exit_status(found) == 6
    assert "hunter2" not in repr(everything)


# --- clocks ---


class Shifted(SystemClock):
    """This machine's clock, wrong by some seconds."""

    def __init__(self, seconds: float) -> None:
        self._by = timedelta(seconds=seconds)

    def now(self) -> datetime:
        return SystemClock().now() + self._by


@pytest.mark.parametrize(("off_s", "way"), [(90.0, "behind"), (-90.0, "ahead of")])
def test_a_clock_that_is_not_postgresqls(
    clinic: Clinic, postgres_url: str, off_s: float, way: str
) -> None:
    begun_s = time.monotonic()
    found = [one for one in examine(postgres_url, clock=Shifted(off_s)) if one.check == "clock"]
    took_s = time.monotonic() - begun_s
    assert [one.verdict for one in found] == [Severity.FAIL]
    assert f" s {way} this machine's" in found[0].says and "time server" in found[0].fix
    [reported_s] = re.findall(r"is ([\d.]+) s", found[0].says)
    # No closer than the time that the answer was under way.
    assert abs(float(reported_s) - 90) <= took_s / 2 + 0.1


def test_all_is_well_with_postgresql(clinic: Clinic, postgres_url: str) -> None:
    assert [one for one in examine(postgres_url) if one.verdict is not Severity.OK] == []


def test_a_clock_that_was_set_back(clinic: Clinic) -> None:
    ahead = ManualClock(SystemClock().now() + timedelta(hours=3))
    with holdfast.connect(clinic.url, clock=ahead) as hf:
        hf.jobs.register_job("x", agent="a", agent_session="tmux:a")
    assert "set back" in clinic.only("clock").says


# --- permissions ---


def test_wide_permissions(clinic: Clinic) -> None:
    clinic.used()
    gateways = clinic.path.with_name(f"{clinic.path.name}-gateways")
    token = gateways / "default" / "gpu" / "token"
    token.parent.mkdir(parents=True)
    token.write_text("secret")
    for path, mode in (
        (clinic.folder, 0o777),
        (clinic.path, 0o644),
        (token, 0o666),
        (token.parent, 0o700),
    ):
        path.chmod(mode)
    gateways.chmod(0o700)
    (gateways / "default").chmod(0o700)
    found = {one.fix: one for one in clinic.look()}
    assert set(found) == {
        f"chmod 700 {clinic.folder}",
        f"chmod 600 {clinic.path}",
        f"chmod 600 {token}",
    }
    assert exit_status(found.values()) == 4
    assert "others may write" in found[f"chmod 600 {token}"].says
    for fix in found:
        subprocess.run(fix.split(), check=True)
    assert clinic.look() == []


def test_a_folder_that_is_shared_with_a_group_on_purpose(clinic: Clinic) -> None:
    clinic.used()
    clinic.folder.chmod(0o2770)
    clinic.path.chmod(0o660)
    found = clinic.look()
    assert {one.verdict for one in found} == {Severity.WARN} and len(found) == 2
    assert exit_status(found) == 0


def test_group_access_follows_the_settings(clinic: Clinic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_GROUP", grp.getgrgid(os.getegid()).gr_name)
    clinic.used()
    assert (
        clinic.folder.stat().st_mode & 0o7777 == 0o2775
        and clinic.path.stat().st_mode & 0o777 == 0o660
    )
    assert clinic.look() == []
    clinic.path.chmod(0o666)
    assert "others may write" in clinic.only("permissions").says


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_a_umask_that_lets_the_group_write_needs_no_repair(clinic: Clinic, kind: str) -> None:
    """As distributions have it that give each user a group of their own."""
    clinic.folder.mkdir(mode=0o755)
    clinic.url = f"{kind}:{clinic.folder}/store"
    before = os.umask(0o002)
    try:
        clinic.used()
        assert clinic.look() == []
    finally:
        os.umask(before)


def test_the_users_own_folder_may_be_seen_and_not_written(clinic: Clinic) -> None:
    clinic.used()
    clinic.folder.chmod(0o755)
    assert clinic.look() == []
    clinic.folder.chmod(0o777)
    assert clinic.only("permissions").fix == f"chmod 700 {clinic.folder}"
    clinic.folder.chmod(0o1777)
    assert clinic.look() == []


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_no_advice_closes_a_file_that_is_no_store(clinic: Clinic, kind: str) -> None:
    other = clinic.folder.parent / "hosts"
    other.write_text("127.0.0.1 localhost\n")
    (clinic.folder.parent / "hosts.allow").touch()
    clinic.url = f"{kind}:{other}"
    assert clinic.look("permissions")[0].verdict is Severity.OK
    assert clinic.look("store")[0].verdict is Severity.FAIL


def test_a_remedy_is_shown_apart_from_the_problem(clinic: Clinic) -> None:
    clinic.url = "nosuch:x"
    found = clinic.look("store")[0]
    assert (found.says, found.fix[:18]) == ("'nosuch:...' is not a store", "give sqlite:PATH, ")


def test_many_wide_files_are_not_all_listed(clinic: Clinic) -> None:
    clinic.used()
    for number in range(20):
        (clinic.folder / f"store.sqlite-{number:02}").touch(mode=0o644)
    found = clinic.look()
    assert len(found) == machine._REPORTED_MAX + 1 and "10 more" in found[-1].says


# --- tmux ---


def test_a_missing_tmux(clinic: Clinic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert clinic.only("tmux").verdict is Severity.WARN
    assert "apt-get install tmux" in clinic.only("tmux").fix
    with clinic.connect() as hf:
        hf.agents.publish(
            "gpu", backend="local_interactive", tool="t", manifest_path="/m", session_name="gpu"
        )
    needed = clinic.only("tmux")
    assert needed.verdict is Severity.FAIL and "HOLDFAST-gpu" in needed.says
    assert exit_status([needed]) == 6


def test_a_stopped_tmux_server(clinic: Clinic, monkeypatch: pytest.MonkeyPatch) -> None:
    with tmux_server() as tmux:
        monkeypatch.setenv("TMUX_TMPDIR", str(tmux.folder))
        tmux("new-session", "-d", "-s", "x", "sleep 600")
        assert "1 tmux session" in clinic.look("tmux")[0].says
        tmux.stop()
        found = clinic.only("tmux")
        assert found.verdict is Severity.FAIL and "kill -CONT" in found.fix


# --- the broker ---


def test_an_unreachable_broker(
    clinic: Clinic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Broker(tmp_path / "broker")) as broker:
        for name, value in broker.environment.items():
            monkeypatch.setenv(name, value)
        found = clinic.only("broker")
        assert (
            found.code == "broker_unavailable"
            and f":{broker.port}" in found.says
            and "start it" in found.fix
        )
        broker.start()
        assert clinic.look() == []
        assert "accepts connections" in clinic.look("broker")[0].says


def test_a_broker_that_does_not_let_us_in(
    clinic: Clinic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path / "broker", secured=True) as broker:
        for name, value in broker.environment.items():
            monkeypatch.setenv(name, value)
        assert clinic.look() == []
        monkeypatch.setenv("MQTT_PASSWORD", "wrong")
        found = clinic.only("broker")
        assert "refuses" in found.says
        assert "wrong" not in found.says + found.fix and USER not in found.says + found.fix


def test_a_key_that_others_may_read(
    clinic: Clinic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "key.pem"
    key.touch(mode=0o644)
    monkeypatch.setenv("MQTT_KEYFILE", str(key))
    assert clinic.only("permissions").fix == f"chmod 600 {key}"


def test_events_that_wait_for_a_broker_that_is_away(
    clinic: Clinic, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = clinic.used()
    monkeypatch.setenv("MQTT_PORT", "9")
    with clinic.connect() as hf:
        hf.job_events.publish(job_id, "started")
    found = {one.check: one for one in clinic.look()}
    assert found["broker"].verdict is Severity.FAIL
    assert "1 event of jobs waits" in found["journal"].says and "--unsent" in found["journal"].fix


def test_a_broker_that_nobody_chose_need_not_be_there(clinic: Clinic) -> None:
    job_id = clinic.used()
    with clinic.connect() as hf:
        hf.job_events.publish(job_id, "started")
    assert clinic.look() == []


# --- gateways and server ---


@pytest.mark.prove
def test_gateways_that_are_stopped_killed_and_blocked(
    clinic: Clinic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_GATEWAY_ROOT", str(tmp_path / "gateways"))
    with GatewayProcess(tmp_path, store=clinic.url) as gateway:
        gateway.start()
        with monkeypatch.context() as patient:
            # One that answers has the time for it that a busy machine takes.
            patient.setattr(sources, "METRICS_ASK_S", PATIENCE_S)
            patient.setattr(sources, "_WITHIN_S", PATIENCE_S)
            assert clinic.look() == []
            assert "1 answer" in clinic.look("gateways")[0].says
        gateway.client.prompt("long")
        gateway.client.prompt("waits")
        until(lambda: json.loads((gateway.root / "state.json").read_text())["queue_depth"] == 2)
        assert gateway.process is not None
        stop_outside(gateway.process.pid, clinic.url)
        found = clinic.only("gateways")
        assert found.verdict is Severity.FAIL and f"kill -CONT {gateway.process.pid}" in found.fix
        gateway.kill()
        killed = clinic.only("gateways")
        assert "2 requests wait" in killed.says and f"holdfast gateway serve {AGENT}" in killed.fix
    # Another program under the same name: what waits is not replayed unasked.
    with GatewayProcess(tmp_path, "--adapter", "command", "--", "cat", store=clinic.url) as another:
        another.start()
        blocked = clinic.only("gateways")
        assert (
            blocked.verdict is Severity.WARN
            and f"reconcile {AGENT} replay|discard --epoch" in blocked.fix
        )
        assert another.stop() == 0


def test_a_server_that_was_killed_or_hangs(clinic: Clinic) -> None:
    clinic.used()
    note = clinic.folder / "store.sqlite-server" / "default" / "instance-1.json"
    note.parent.mkdir(parents=True, mode=0o700)
    note.parent.parent.chmod(0o700)

    def says(process: Holder, port: int) -> None:
        note.write_text(
            json.dumps(
                {
                    "schema_version": 1,
                    "process": holder_facts(process),
                    "host": "127.0.0.1",
                    "port": port,
                }
            )
        )
        note.chmod(0o600)

    with clinic.connect() as hf, a_listener() as port:
        says(a_dead_process(hf), port)
        assert clinic.only("server").verdict is Severity.WARN
        # It listens and does not answer.
        says(hf.processes.current(), port)
        assert clinic.only("server").verdict is Severity.FAIL


def holder_facts(holder: Holder) -> dict[str, object]:
    facts: dict[str, object] = json.loads(to_json(holder))
    return facts


@contextmanager
def a_listener() -> Iterator[int]:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


# --- what is left, and what is yet to be sent ---


def test_what_the_dead_left(clinic: Clinic) -> None:
    clinic.used()
    with clinic.connect() as hf:
        dead = a_dead_process(hf)
        assert hf.jobs.pick_pending("tmux:a", holder=dead) is not None
        hf.workflows.register("tuning", "llama", owner=dead)
        hf.agents.publish("gpu", backend="command", tool="t", manifest_path="/m", holder=dead)
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, clinic.url], stdout=subprocess.PIPE)
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    holder.kill()
    holder.communicate()
    with clinic.connect() as hf:
        before = hf.log.tail(1000)
        found = clinic.look()
        assert hf.log.tail(1000) == before
    assert {one.check for one in found} == {"leftovers"} and {one.verdict for one in found} == {
        Severity.WARN
    }
    notes = [one for one in clinic.look("leftovers") if one.verdict is Severity.OK]
    # Nobody asks for it, and a caller that does gets it: nothing to report.
    assert [one.says for one in notes] == [
        "1 lock is still in the name of the dead, such as router-9: the next one that asks gets it"
    ]
    said = " ".join(one.says for one in found)
    for words in (
        "1 job runs without",
        "such as tuning",
        "1 agent left",
        "left on hosts",
    ):
        assert words in said, said
    fixes = " ".join(one.fix for one in found)
    for command in ("jobs list", "workflows sweep", "agents cleanup", "network sweep"):
        assert f"holdfast {command}" in fixes


def test_a_stopped_process_that_holds_what_others_wait_for(clinic: Clinic) -> None:
    clinic.used()
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, clinic.url], stdout=subprocess.PIPE)
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    stop_outside(holder.pid, clinic.url)
    assert clinic.look() == []
    with clinic.connect() as hf:
        asking = threading.Thread(
            target=lambda: hf.locks.acquire("router-9", by="waits", timeout_s=PATIENCE_S).release()
        )
        asking.start()
        until(lambda: bool(hf.locks.status("router-9").queue))
        found = clinic.only("leftovers")
        advice = hf.locks.explain("router-9").advice
        holder.kill()
        holder.communicate()
        asking.join()
    assert (
        "router-9 is waited for" in found.says
        and f"{holder.pid} of doomed, who holds it, is stopped" in found.says
    )
    assert (
        found.fix.startswith(f"kill -CONT {holder.pid} ")
        and f"kill -CONT {holder.pid} " in advice[0]
    )


HOLDER = """
import sys, signal, holdfast
hf = holdfast.connect(sys.argv[1])
grant = hf.locks.acquire("router-9", by="doomed")
hf.network.register_host("h1", "10.0.0.1", "router-1", "02:00:00:00:00:01")
hf.network.acquire_source_host_lease("run-1", "h1", "quick", "router-1")
print("held", flush=True)
signal.pause()
"""


def test_the_mark_of_a_dead_swap(clinic: Clinic) -> None:
    clinic.used()
    script = (
        "import sys, signal, holdfast\nhf = holdfast.connect(sys.argv[1])\n"
        "with hf.workflows.swap('qwen'):\n    print('swapping', flush=True)\n    signal.pause()"
    )
    swapper = subprocess.Popen([sys.executable, "-c", script, clinic.url], stdout=subprocess.PIPE)
    assert swapper.stdout is not None and swapper.stdout.readline() == b"swapping\n"
    assert clinic.look() == []
    swapper.kill()
    swapper.communicate()
    found = clinic.only("leftovers")
    assert "qwen" in found.says and "swap reconcile" in found.fix
    with clinic.connect() as hf:
        assert hf.workflows.snapshot().marker is not None
        hf.workflows.reconcile_swap_marker()
    found = clinic.only("leftovers")
    assert (
        "unknown what is loaded" in found.says
        and "the load of qwen" in found.says
        and "swap to" in found.fix
    )
    with clinic.connect() as hf, hf.workflows.swap("qwen"):
        # A running load is no fault.
        assert clinic.look() == []


def test_an_audit_log_that_cannot_be_written(
    clinic: Clinic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clinic.used()
    (tmp_path / "file").touch()
    monkeypatch.setenv("DELEGATE_JOB_LOGS_DIR", str(tmp_path / "file"))
    found = clinic.only("journal")
    assert (
        found.verdict is Severity.FAIL and "is no folder" in found.says and "jobs.logs" in found.fix
    )


def test_an_audit_log_that_is_behind(
    clinic: Clinic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clinic.used()
    monkeypatch.setenv("DELEGATE_JOB_LOGS_DIR", str(tmp_path / "logs"))
    assert clinic.look() == []
    monkeypatch.setattr(records, "LAG_S", -1)
    found = clinic.only("journal")
    assert (
        found.verdict is Severity.WARN
        and "1 entry and" in found.says
        and "jobs logs --list" in found.fix
    )


def test_a_server_of_a_database_that_goes_while_it_is_looked_at(
    clinic: Clinic, postgres_server: Server
) -> None:
    url = postgres_server.database()
    found = []
    for finding in examine(url):
        found.append(finding)
        if finding.check == "store":
            postgres_server.drop(url)
    assert exit_status(found) in (5, 6)
    assert {one.check for one in found} >= {
        "store",
        "schema",
        "tmux",
        "broker",
        "gateways",
        "server",
    }
