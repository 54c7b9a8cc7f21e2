"""Events over a real broker: sent, kept while it is away, and believed only when genuine; watchers
that end rightly.
"""

import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

import holdfast as library
from holdfast.domains.jobs.events import signature
from holdfast.domains.jobs.records import JOBS
from holdfast.kernel.codec import to_json
from holdfast.kernel.store import JOURNAL_TOPIC
from tests.harness.timeouts import NEVER_S, PATIENCE_S
from tests.surfaces.broker import PASSWORD, Broker, running
from tests.surfaces.command import CommandLine, Ran
from tests.surfaces.locking import remark

pytestmark = pytest.mark.prove

LABEL = "tmux:a"


@pytest.fixture(
    params=[False, pytest.param(True, marks=pytest.mark.prove)], ids=["plain", "tls and a password"]
)
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    with running(tmp_path / "broker", secured=request.param) as made:
        yield made


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Broker]:
    with running(tmp_path / "broker") as made:
        yield made


def command_line(tmp_path: Path, broker: Broker) -> CommandLine:
    folder = tmp_path / "work"
    folder.mkdir()
    return CommandLine(
        folder, HOLDFAST_STORE=f"sqlite:{folder}/state/store.sqlite", **broker.environment
    )


def register(holdfast: CommandLine, *more: str) -> str:
    ran = holdfast("jobs", "register", "--prompt", "sort it", "--agent-session", LABEL, *more)
    assert (ran.status, ran.err) == (0, "")
    return ran.out.strip()


def watching(holdfast: CommandLine, broker: Broker, *words: str) -> "subprocess.Popen[str]":
    """A watcher that listens to the broker already."""
    before = broker.logged("Sending SUBACK")
    watcher = holdfast.start("jobs", "watch", *words)
    broker.wait_for("Sending SUBACK", before + 1)
    return watcher


def ended(watcher: "subprocess.Popen[str]") -> Ran:
    out, err = watcher.communicate(timeout=PATIENCE_S)
    return Ran(watcher.returncode, out, err)


def direct(broker: Broker, topic: str, *payloads: bytes) -> None:
    """Send as anybody could who reaches the broker."""
    from holdfast.adapters.mqtt import Publisher
    from holdfast.domains.jobs import Broker as Record
    from holdfast.domains.jobs.broker_address import address_of

    publisher = Publisher(address_of(Record(), broker.environment))
    for payload in payloads:
        publisher.send(topic, payload)
    publisher.close()


def test_a_job_from_register_to_the_end_of_the_watch(broker: Broker, tmp_path: Path) -> None:
    holdfast = command_line(tmp_path, broker)
    job_id = register(holdfast)
    watcher = watching(holdfast, broker, job_id, "--timeout", str(PATIENCE_S))
    assert holdfast("jobs", "publish", job_id, "started") == (0, "1\n", "")
    assert (
        holdfast(
            "jobs", "publish", job_id, "progress", "--detail", "half", "--data", '{"percent": 50}'
        ).status
        == 0
    )
    assert holdfast("jobs", "publish", job_id, "completed", "--detail", "sorted").status == 0
    assert ended(watcher) == (
        0,
        f"{job_id} #1 started\n{job_id} #2 progress: half\n{job_id} #3 completed: "
        f"sorted\n{job_id} is completed: sorted\n",
        "",
    )
    shown = json.loads(holdfast("jobs", "get", "--job", job_id, "--json").out)
    assert (shown["status"], shown["result"], shown["last_seq"]) == ("completed", "sorted", 3)
    logged = [
        json.loads(line) for line in holdfast("jobs", "logs", job_id, "--json").out.splitlines()
    ]
    assert [line["event"] for line in logged] == [
        *("registered", "published", "status_changed"),
        *("published", "published", "status_changed"),
    ]
    assert logged[3]["payload"]["data"] == {"percent": 50}


def test_no_secret_is_in_any_file_line_or_output(tmp_path: Path) -> None:
    with running(tmp_path / "broker", secured=True) as broker:
        holdfast = command_line(tmp_path, broker)
        said = []
        job_id = register(holdfast, "--broker-username", "worker")
        watcher = watching(holdfast, broker, job_id, "--json")
        script = (
            'holdfast() { %s "$@"; }; holdfast -v jobs run --agent-session tmux:a --once -- sh '
            "-c 'cat; env | grep HOLDFAST'"
        )
        from tests.surfaces.command import ENTRY

        said.append(holdfast.shell(script % shlex.join(ENTRY)))
        said.append(ended(watcher))
        for words in (
            ["jobs", "list", "--json"],
            ["jobs", "get", "--job", job_id],
            ["jobs", "get", "--job", job_id, "--json"],
            ["jobs", "logs", job_id],
            ["jobs", "logs", job_id, "--json"],
            ["jobs", "logs", "--list", "--json"],
            ["log", "--json"],
            ["-vv", "jobs", "list"],
        ):
            said.append(holdfast(*words))
        assert said[0].status == 0, said[0]
        with library.connect(holdfast.environment["HOLDFAST_STORE"]) as hf:
            job = hf.jobs.get_job(job_id)
            assert job.auth_token is not None
            assert job.broker.password is None
        secrets = [job.auth_token, PASSWORD]
        for text in map(str, said):
            assert not [secret for secret in secrets if secret in text]
        holders = {
            path
            for path in (tmp_path / "work").rglob("*")
            if path.is_file() and any(secret.encode() in path.read_bytes() for secret in secrets)
        }
        store = tmp_path / "work" / "state" / "store.sqlite"
        assert holders <= {store, store.with_name("store.sqlite-wal")}
        assert holders
        assert all(path.stat().st_mode & 0o077 == 0 for path in holders)


def test_a_broker_that_does_not_let_us_in_is_one_clear_error(tmp_path: Path) -> None:
    with running(tmp_path / "broker", secured=True) as broker:
        holdfast = command_line(tmp_path, broker)
        job_id = register(holdfast)
        wrongs = (
            {"MQTT_PASSWORD": "wrong"},
            {"MQTT_CA_CERTS": ""},
            {"MQTT_CA_CERTS": "/no"},
            {"MQTT_TLS": "0"},
        )
        for number, wrong in enumerate(wrongs, 1):
            holdfast.environment.update({**broker.environment, **wrong})
            ran = holdfast("jobs", "publish", job_id, "started")
            assert (ran.status, ran.out) == (6, f"{number}\n"), (wrong, ran)
            kept = (
                f"holdfast: event {number} of job {job_id} is kept and not sent yet: the message "
                "broker localhost:"
            )
            assert ran.err.startswith(kept)
            assert ran.err.count("\n") == 1
            assert PASSWORD not in ran.err
        holdfast.environment.update(broker.environment)
        assert holdfast("jobs", "publish", "--unsent") == (0, "4 events sent\n", "")


def test_events_of_an_outage_are_sent_later_in_order(plain: Broker, tmp_path: Path) -> None:
    holdfast = command_line(tmp_path, plain)
    job_id = register(holdfast)
    plain.stop()
    for event in ("started", "progress", "progress"):
        ran = holdfast("jobs", "publish", job_id, event)
        assert ran.status == 6
        assert "holdfast jobs publish --unsent" in ran.err
    assert json.loads(holdfast("jobs", "get", "--job", job_id, "--json").out)["status"] == "running"
    plain.start()
    with listening(plain, f"holdfast/jobs/{job_id}/events") as heard:
        assert holdfast("jobs", "publish", job_id, "completed").status == 0
        assert [event["seq"] for event in heard(4)] == [1, 2, 3, 4]
    assert holdfast("jobs", "publish", "--unsent", "--json").out == '{"sent":0}\n'


def test_progress_is_sent_while_the_work_goes_on(plain: Broker, tmp_path: Path) -> None:
    holdfast = command_line(tmp_path, plain)
    job_id = register(holdfast)
    go = tmp_path / "go"
    os.mkfifo(go)
    with listening(plain, f"holdfast/jobs/{job_id}/events") as heard:
        words = ("--once", "--heartbeat", "0.1", "--", "sh", "-c", f"echo half; cat {go}")
        worker = holdfast.start("jobs", "run", "--agent-session", LABEL, *words)
        assert [event["event"] for event in heard(2)] == ["started", "progress"]
    go.write_text("")
    assert ended(worker)[0] == 0


def test_all_that_waits_is_sent_and_a_topic_that_cannot_be_holds_up_nothing(
    plain: Broker, tmp_path: Path
) -> None:
    holdfast = command_line(tmp_path, plain)
    with library.connect(holdfast.environment["HOLDFAST_STORE"]) as hf:
        for job_id in ("a", "b", "c"):
            hf.jobs.register_job("sort it", agent="agent", agent_session=LABEL, job_id=job_id)
        hf.job_events.publish("a", "progress")
        job = hf.jobs.get_job("a")
        hf.store.transact(
            lambda tx: tx.put(JOBS, "a", replace(job, topic_prefix="a/#")), scope=[JOBS]
        )
        for number in range(1100):
            hf.job_events.publish("bc"[number % 2], "progress")
    ran = holdfast("jobs", "publish", "--unsent")
    assert (ran.status, ran.out) == (2, "1100 events sent\n"), ran
    assert "give job a another topic_prefix" in ran.err
    ran = holdfast("jobs", "publish", "a", "progress")
    assert (ran.status, ran.out) == (2, "2\n"), ran
    assert "event 2 of job a is kept and not sent yet" in ran.err


def test_a_broker_that_goes_and_comes_under_a_worker_and_a_watcher(
    plain: Broker, tmp_path: Path
) -> None:
    holdfast = command_line(tmp_path, plain)
    job_id = register(holdfast)
    watcher = watching(holdfast, plain, job_id, "--timeout", str(PATIENCE_S))
    go = tmp_path / "go"
    os.mkfifo(go)
    worker = holdfast.start(
        "jobs",
        "run",
        "--agent-session",
        LABEL,
        "--once",
        "--",
        "sh",
        "-c",
        f"echo on; cat {go}; echo done",
    )
    plain.wait_for("Received PUBLISH")
    plain.stop()
    go.write_text("")
    assert ended(worker)[0] == 0
    status, out, _ = ended(watcher)
    assert (status, out.splitlines()[-1]) == (0, f"{job_id} is completed: done")
    plain.start()
    sent = holdfast("jobs", "publish", "--unsent")
    assert (sent.status, sent.out) == (0, "1 event sent\n")


def test_a_worker_sends_by_itself_what_an_outage_kept(plain: Broker, tmp_path: Path) -> None:
    holdfast = command_line(tmp_path, plain)
    job_id = register(holdfast)
    go = tmp_path / "go"
    os.mkfifo(go)
    script = f"cat {go} >/dev/null; echo half; cat {go} >/dev/null"
    worker = holdfast.start(
        "jobs",
        "run",
        "--agent-session",
        LABEL,
        "--once",
        "--heartbeat",
        "0.1",
        "--",
        "sh",
        "-c",
        script,
    )
    plain.wait_for("Received PUBLISH", 1)
    plain.stop()
    with library.connect(holdfast.environment["HOLDFAST_STORE"]) as hf:
        with hf.store.listen([JOURNAL_TOPIC]) as ears:
            go.write_text("")
            while not hf.job_events.of_job(job_id, after_seq=1):
                ears.wait(PATIENCE_S)
        plain.start()
        # The worker is still at it: what it kept is sent before its end, and not by somebody else.
        plain.wait_for("Received PUBLISH", 2)
        go.write_text("")
        assert ended(worker)[0] == 0
        assert hf.job_events.unsent() == []
        assert [one.event.value for one in hf.job_events.of_job(job_id)] == [
            "started",
            "progress",
            "completed",
        ]


def test_a_watcher_reconnects_and_hears_of_jobs_that_another_copy_ends(
    plain: Broker, tmp_path: Path
) -> None:
    holdfast = command_line(tmp_path, plain)
    job_id = register(holdfast)
    holdfast("jobs", "pick", "--agent-session", LABEL)
    watcher = watching(holdfast, plain, job_id, "--timeout", str(PATIENCE_S))
    plain.stop()
    plain.start()
    plain.wait_for("Sending SUBACK", 2)
    with library.connect(holdfast.environment["HOLDFAST_STORE"]) as hf:
        job = hf.jobs.get_job(job_id)
        assert job.auth_token is not None
        event = {
            "schema_version": 1,
            "seq": 1,
            "job_id": job_id,
            "event": "error",
            "detail": "no",
            "timestamp": "2026-01-01T00:00:00Z",
        }
        direct(
            plain,
            job.events_topic,
            json.dumps({**event, "sig": signature(event, job.auth_token)}).encode(),
        )
    assert ended(watcher) == (1, f"{job_id} #1 error: no\n{job_id} is error: no\n", "")


def test_a_forged_replayed_or_altered_completed_ends_no_watch(
    plain: Broker, tmp_path: Path
) -> None:
    holdfast = command_line(tmp_path, plain)
    job_id = register(holdfast)
    assert holdfast("jobs", "publish", job_id, "started").status == 0
    watcher = watching(holdfast, plain, job_id, "--timeout", str(PATIENCE_S))
    with library.connect(holdfast.environment["HOLDFAST_STORE"]) as hf:
        job = hf.jobs.get_job(job_id)
        [started] = hf.job_events.of_job(job_id)
    assert job.auth_token is not None
    genuine = json.loads(to_json(started))
    late = {**genuine, "event": "completed"}
    late["sig"] = signature(late, job.auth_token)
    direct(
        plain,
        job.events_topic,
        b"\xff\x00junk",
        json.dumps({**genuine, "seq": 2, "event": "completed"}).encode(),
        json.dumps({**genuine, "seq": 2, "event": "completed", "sig": None}).encode(),
        json.dumps({**genuine, "seq": 2, "event": "completed", "job_id": "another"}).encode(),
        json.dumps(genuine).encode(),
        json.dumps(late).encode(),
    )
    # It has seen all of these before its own end comes, which the registry reports too, and sooner.
    dropped = [remark(watcher) for _ in range(5)]
    assert holdfast("jobs", "publish", job_id, "error", "--detail", "the truth").status == 0
    status, out, err = ended(watcher)
    assert status == 1
    assert (
        out == f"{job_id} #1 started\n{job_id} #2 error: the truth\n{job_id} is error: the truth\n"
    )
    assert all("event dropped" in said for said in dropped) and "event dropped" not in err
    assert not [said for said in (*dropped, err) if job.auth_token in said]


def test_a_late_watcher_ends_at_once(plain: Broker, tmp_path: Path) -> None:
    holdfast = command_line(tmp_path, plain)
    done, failed = register(holdfast), register(holdfast)
    for job_id, event in ((done, "completed"), (failed, "error")):
        holdfast("jobs", "publish", job_id, "started")
        holdfast("jobs", "publish", job_id, event)
    assert holdfast("jobs", "watch", done).status == 0
    assert holdfast("jobs", "watch", done, failed).status == 1
    plain.stop()
    assert holdfast("jobs", "watch", done).status == 0


def test_a_watcher_alone_sees_the_end_of_a_job_that_nobody_works_on(
    plain: Broker, tmp_path: Path, sleeper: "subprocess.Popen[bytes]"
) -> None:
    """Nobody else checks, and no event reports it."""
    holdfast = command_line(tmp_path, plain)
    orphan, late = register(holdfast, "--max-attempts", "1"), register(holdfast, "--timeout", "1")
    watchers = [
        watching(holdfast, plain, job_id, "--timeout", str(PATIENCE_S)) for job_id in (late, orphan)
    ]
    for pid in (("--pid", str(sleeper.pid)), ()):
        assert holdfast("jobs", "pick", "--agent-session", LABEL, *pid).status == 0
    sleeper.kill()
    assert ended(watchers[0])[:2] == (1, f"{late} is error: no verdict came within 1 s\n")
    status, out, _ = ended(watchers[1])
    assert status == 1 and out.startswith(f"{orphan} is error: its worker died")


_PATIENT = f"""
from holdfast.kernel import limits
limits.BROKER_CONNECT_S = {NEVER_S}
from holdfast.surfaces.cli import entry
entry.main()
"""
"""`holdfast` to which a broker's silence is never too long."""


def test_a_broker_that_says_nothing_does_not_hold_up_the_end_of_a_watch(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = str(silent.getsockname()[1])
        holdfast = CommandLine(tmp_path, MQTT_BROKER="127.0.0.1", MQTT_PORT=port, MQTT_TLS="1")
        words = [
            sys.executable,
            "-c",
            _PATIENT,
            "jobs",
            "watch",
            register(holdfast),
            "--timeout",
            "0.2",
        ]
        watcher = subprocess.Popen(words, cwd=tmp_path, env=holdfast.environment)
        # It waits for the answer to its greeting now.
        with silent.accept()[0]:
            assert watcher.wait(PATIENCE_S) == 5


def test_a_watch_of_several_of_any_and_for_a_while(plain: Broker, tmp_path: Path) -> None:
    holdfast = command_line(tmp_path, plain)
    first, second = register(holdfast), register(holdfast)
    ran = holdfast("jobs", "watch", first, second, "--timeout", "0.2")
    assert ran.status == 5
    assert first in ran.err
    assert holdfast("jobs", "watch", "--any", "--idle-timeout", "0.2").status == 5
    both = watching(holdfast, plain, first, second)
    any_ = watching(holdfast, plain, "--any")
    late = register(holdfast)
    holdfast("jobs", "publish", late, "started")
    holdfast("jobs", "publish", late, "completed")
    assert ended(any_)[0] == 0
    assert both.poll() is None
    assert holdfast("jobs", "cancel", "--job", second, "--reason", "enough").status == 0
    assert ended(both)[:2] == (1, f"{second} is cancelled: enough\n")


def test_bad_input_of_publish_and_watch(plain: Broker, tmp_path: Path) -> None:
    holdfast = command_line(tmp_path, plain)
    job_id = register(holdfast)
    for words, status, says in (
        (["publish", "nosuch", "started"], 1, "no job nosuch"),
        (["publish", job_id, "completed"], 1, "cannot become completed"),
        (["publish", job_id, "finished"], 2, "'finished' is not a job event: use one of started"),
        (["publish", job_id, "progress", "--data", "1e400"], 2, "1e400"),
        (["publish", "--unsent", "--detail", "x"], 2, "--unsent"),
        (["publish", job_id], 2, "--unsent"),
        (["publish"], 2, "--unsent"),
        (["publish", job_id, "progress", "--data", "{not json"], 2, "not JSON"),
        (["publish", job_id, "progress", "--data", "NaN"], 2, "not JSON"),
        (["publish", job_id, "progress", "--token", "5"], 4, "stop work"),
        (["watch"], 2, "--any"),
        (["watch", "nosuch"], 1, "no job nosuch"),
        (["watch", "../x"], 2, "job id"),
        (["watch", job_id, "--any"], 2, "--any"),
        (["watch", job_id, "--timeout", "nan"], 2, "nan"),
    ):
        ran = holdfast("jobs", *words)
        assert (ran.status, says in ran.err) == (status, True), (words, ran)
        assert "Traceback" not in ran.err


class _Ears:
    """Somebody else who listens to a topic."""

    def __init__(self, broker: Broker, topic: str) -> None:
        from holdfast.adapters.mqtt import Subscriber
        from holdfast.domains.jobs import Broker as Record
        from holdfast.domains.jobs.broker_address import address_of

        before = broker.logged("Sending SUBACK")
        self.subscriber = Subscriber(address_of(Record(), broker.environment), [topic])
        broker.wait_for("Sending SUBACK", before + 1)
        self.heard: list[dict[str, object]] = []

    def __enter__(self) -> "_Ears":
        return self

    def __exit__(self, *_: object) -> None:
        self.subscriber.close()

    def __call__(self, number: int) -> list[dict[str, object]]:
        """The first so many messages."""
        import select

        while len(self.heard) < number:
            assert select.select([self.subscriber.fd], [], [], PATIENCE_S)[0], self.heard
            self.heard += [json.loads(message.payload) for message in self.subscriber.take()]
        return self.heard


def listening(broker: Broker, topic: str) -> _Ears:
    return _Ears(broker, topic)
