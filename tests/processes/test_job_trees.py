"""The processes of a job's command: no two attempts of a job work side by side, whatever is killed,
and nothing is left behind.

The first attempt of a job starts processes of several kinds, which write lines to one file until
they are ended. Every other attempt writes one line, and which processes of the first attempt it
found alive.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.domains.jobs import JobStatus
from holdfast.domains.jobs.events import Event, EventKind, signed
from holdfast.kernel.codec import to_json
from holdfast.kernel.holder import Liveness, probe
from holdfast.runtime.configuration import tree_folder_of
from holdfast.runtime.connection import Holdfast
from tests.harness.processes import children, state_of, used_by, used_since
from tests.harness.stopped_processes import stop_outside
from tests.harness.timeouts import PATIENCE_S, until
from tests.processes.trees import needs_groups
from tests.surfaces.command import ENTRY, CommandLine

pytestmark = pytest.mark.prove

LABEL = "tmux:a"

_MEMBER = """
PATH=/usr/bin:/bin
echo $$ >> pids
echo $$ >> "pids.$1"
while :; do echo "1 $1" >> lines; sleep 0.02; done
"""
_DEAF = """
trap '' TERM
echo $$ >> pids
while :; do
    sh -c 'echo $$ >> pids; echo "1 deaf" >> lines; exec sleep 0.1' &
    sleep 0.05
done
"""
_LATER = """
import os, pathlib
def state(pid):
    try: return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError: return "gone"
with open("lines", "a") as lines: lines.write(os.environ["HOLDFAST_JOB_ATTEMPT"] + " later\\n")
alive = [pid for pid in pathlib.Path("pids").read_text().split() if state(pid) not in ("gone", "Z", "X")]
pathlib.Path("alive").write_text(" ".join(alive))
"""
_SPAWN = "import subprocess; subprocess.Popen(['/bin/sh', '{}', 'no_fifo'], start_new_session=True)"

KINDS = {
    "plain": "sh member.sh plain &",
    "session": "setsid sh -c '(sh member.sh session &)'",
    "no_fifo": f'{sys.executable} -c "{_SPAWN.format("member.sh")}"',
    "no_mark": "env -i /bin/sh member.sh no_mark &",
    "deaf": "setsid sh deaf.sh &",
    "deaf_no_fifo": f'{sys.executable} -c "{_SPAWN.format("deaf.sh")}"',
    "unmarked": (
        f'env -i {sys.executable} -c "{_SPAWN.format("member.sh").replace("no_fifo", "unmarked")}"'
    ),
    "deaf_unmarked": f'env -i {sys.executable} -c "{_SPAWN.format("deaf.sh")}"',
}
"""Ways of a grandchild to be hard to find or to end: an orphan in a session of its own, one without
the FIFO, one without the mark, one without both, and one that ignores SIGTERM and forks all the
time.
"""


@pytest.fixture(params=["sqlite", "files", "postgres"])
def any_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"{request.param}:{tmp_path}/state/store"


@pytest.fixture(autouse=True)
def _own_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The FIFOs of a database lie in the user's state folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))


@pytest.fixture
def stage(tmp_path: Path) -> "Iterator[Stage]":
    with Stage(tmp_path, f"sqlite:{tmp_path}/state/store") as made:
        yield made


@pytest.fixture
def any_stage(any_url: str, tmp_path: Path) -> "Iterator[Stage]":
    with Stage(tmp_path, any_url) as made:
        yield made


class Stage:
    """A store, workers on it, and what the processes of their jobs wrote."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.line = CommandLine(
            folder, HOLDFAST_STORE=url, XDG_STATE_HOME=os.environ["XDG_STATE_HOME"], MQTT_PORT="9"
        )
        self.hf: Holdfast = holdfast.connect(url)
        self._workers: list[subprocess.Popen[str]] = []
        for name, text in (("member.sh", _MEMBER), ("deaf.sh", _DEAF), ("later.py", _LATER)):
            (folder / name).write_text(text)

    def __enter__(self) -> "Stage":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.kill()
        # Those of a test that failed: none of them may outlive it, and they keep the output of
        # their worker open.
        for pid in self.alive():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for worker in self._workers:
            worker.communicate()
        self.hf.close()

    def register(self, **more: Any) -> str:
        job = self.hf.jobs.register_job(
            "x", agent="a", agent_session=LABEL, workdir=str(self.folder), **more
        )
        return job.job_id

    def worker(self, *kinds: str, options: tuple[str, ...] = ()) -> "subprocess.Popen[str]":
        """A worker whose first attempts start processes of these kinds and work until they are
        ended.
        """
        first = "\n".join([*(KINDS[kind] for kind in kinds), "exec sh member.sh parent"])
        script = (
            f'if [ "$HOLDFAST_JOB_ATTEMPT" != 1 ]; then exec {sys.executable} later.py; fi\n{first}'
        )
        return self.start(script, *options)

    def start(self, script: str, *options: str) -> "subprocess.Popen[str]":
        words = ["jobs", "run", "--agent-session", LABEL, "-q", *options, "--", "sh", "-c", script]
        worker = self.line.start(*words)
        self._workers.append(worker)
        return worker

    def shell(self, script: str) -> "subprocess.Popen[str]":
        """A shell in the folder of the test."""
        pipe = subprocess.PIPE
        words, environment = ["sh", "-c", script], self.line.environment
        shell = subprocess.Popen(
            words, cwd=self.folder, env=environment, stdout=pipe, stderr=pipe, text=True
        )
        self._workers.append(shell)
        return shell

    def pids(self) -> list[int]:
        try:
            return [int(word) for word in (self.folder / "pids").read_text().split()]
        except FileNotFoundError:
            return []

    def named(self, name: str) -> list[int]:
        """The processes that write lines with this name."""
        return [int(word) for word in (self.folder / f"pids.{name}").read_text().split()]

    def is_member(self, pid: int) -> bool:
        """Is it, by now, still one of this test's? Another process may have its number."""
        with suppress(OSError):
            return state_of(pid) not in (None, "Z") and os.readlink(f"/proc/{pid}/cwd") == str(
                self.folder
            )
        return False

    def alive(self) -> list[int]:
        return [pid for pid in self.pids() if self.is_member(pid)]

    def lines(self) -> list[str]:
        try:
            return (self.folder / "lines").read_text().splitlines()
        except FileNotFoundError:
            return []

    def until_all_write(self, *names: str) -> None:
        until(lambda: {f"1 {name}" for name in names} <= set(self.lines()), saw=self.lines)

    def fifos(self) -> list[str]:
        folder = tree_folder_of(self.hf.store)
        assert folder is not None
        return sorted(os.listdir(folder)) if folder.exists() else []

    def check_second_attempt(self, job_id: str, *, deaths: int = 1) -> None:
        """The second attempt began when nothing of the first was left."""
        job = self.hf.jobs.peek(job_id)
        assert job is not None
        assert (job.status, job.attempt, job.deaths) == (JobStatus.COMPLETED, 2, deaths)
        assert (self.folder / "alive").read_text() == ""
        attempts = [line.split()[0] for line in self.lines()]
        assert attempts == sorted(attempts)
        assert attempts.count("2") == 1


def kill(worker: "subprocess.Popen[str]", victims: str) -> None:
    """Kill a worker, and its guardian if that is said, at one moment."""
    pids = [*children(worker.pid), worker.pid] if victims == "both" else [worker.pid]
    for pid in pids:
        # Stopped first, so that none of them sees the death of the other.
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def done(worker: "subprocess.Popen[str]") -> int:
    _, err = worker.communicate(timeout=PATIENCE_S)
    assert "Traceback" not in err, err
    return worker.returncode


@pytest.mark.parametrize("victims", ["worker", "both"])
def test_the_next_attempt_begins_when_the_last_process_of_a_killed_worker_is_gone(
    any_stage: Stage, victims: str
) -> None:
    stage = any_stage
    job_id = stage.register()
    first = stage.worker("plain", "session", "no_fifo", "no_mark")
    stage.until_all_write("parent", "plain", "session", "no_fifo", "no_mark")
    second = stage.worker(options=("--once", "--wait", "100"))
    kill(first, victims)
    assert done(second) == 0
    stage.check_second_attempt(job_id)
    if victims == "worker":
        # Those of the first worker and its command tell that they have ended, until a sweep.
        assert stage.hf.processes.trees.sweep(older_than_s=0) == 2
        assert stage.fifos() == []


@pytest.mark.parametrize("victims", ["worker", "both"])
@pytest.mark.parametrize(
    "kind", ["session", "no_fifo", "no_mark", pytest.param("unmarked", marks=needs_groups), "deaf"]
)
def test_one_process_that_is_hard_to_find_or_to_end(stage: Stage, kind: str, victims: str) -> None:
    job_id = stage.register()
    first = stage.worker(kind)
    stage.until_all_write("parent", kind)
    second = stage.worker(options=("--once", "--wait", "100"))
    kill(first, victims)
    assert done(second) == 0
    stage.check_second_attempt(job_id)


def test_one_shot_commands_share_the_grace_of_a_deaf_tree(stage: Stage) -> None:
    """Each of them ends long before the grace is over."""
    job_id = stage.register()
    first = stage.worker("deaf")
    stage.until_all_write("parent", "deaf")
    kill(first, "both")
    until(lambda: stage.line("jobs", "pick", "--agent-session", LABEL).status == 0)
    assert stage.alive() == []
    job = stage.hf.jobs.peek(job_id)
    assert job is not None and (job.attempt, job.deaths) == (2, 1)


def test_a_claim_lives_as_long_as_its_worker_or_any_process_of_its_tree(stage: Stage) -> None:
    job_id = stage.register()
    worker = stage.worker("plain")
    stage.until_all_write("parent", "plain")
    job = stage.hf.jobs.peek(job_id)
    assert job is not None and job.claimed_by is not None and job.claimed_by.tree
    assert probe(job.claimed_by, stage.hf.processes, embedded=True) is Liveness.ALIVE
    pids = stage.pids()
    kill(worker, "both")
    worker.wait()
    assert probe(job.claimed_by.leader, stage.hf.processes, embedded=True) is Liveness.DEAD
    assert len(pids) == 2
    for pid in pids:
        assert probe(job.claimed_by, stage.hf.processes, embedded=True) is Liveness.ALIVE
        os.kill(pid, signal.SIGKILL)
        until(lambda pid=pid: not stage.is_member(pid))  # type: ignore[misc]
    # The last process of a shell that was killed ends by itself.
    until(lambda: probe(job.claimed_by, stage.hf.processes, embedded=True) is Liveness.DEAD)  # type: ignore[arg-type]


def test_a_pick_that_waits_for_a_tree_without_its_fifo_rests(stage: Stage) -> None:
    """The FIFO is hung up and says nothing any more, and a process ends every moment."""
    stage.register()
    worker = stage.worker("deaf_no_fifo")
    stage.until_all_write("parent", "deaf")
    waiter = stage.line.start("jobs", "pick", "--agent-session", LABEL, "--wait", "100")
    try:
        kill(worker, "both")
        until(lambda: not any(stage.is_member(pid) for pid in stage.named("parent")))
        before = used_by(waiter.pid)
        threading.Event().wait(4)
        assert stage.alive() != []
        # A loop would use all of the time. The number of sleeps shows less: a search of all
        # processes sleeps where one is about to execute another program.
        used = used_since(before, waiter.pid)
        assert used.cpu_s < 1, used
        assert waiter.communicate(timeout=PATIENCE_S)[0]
        assert stage.alive() == []
    finally:
        waiter.kill()
        waiter.communicate()


@pytest.mark.parametrize("verb", ["cancel", "requeue"])
def test_taking_a_job_away_ends_a_grandchild_with_a_session_of_its_own(
    stage: Stage, verb: str
) -> None:
    job_id = stage.register()
    worker = stage.worker("session", "no_fifo", options=("--once",))
    stage.until_all_write("parent", "session", "no_fifo")
    assert stage.line("jobs", verb, "--job", job_id).status == 0
    assert done(worker) == 4
    assert stage.alive() == []
    assert stage.fifos() == []


@pytest.mark.parametrize(
    "words", [("cancel", "--job", "{}"), ("publish", "{}", "cancelled")], ids=["cancel", "publish"]
)
def test_a_cancelled_job_of_a_worker_that_was_killed_with_its_guardian(
    any_stage: Stage, words: tuple[str, ...]
) -> None:
    stage = any_stage
    job_id = stage.register()
    worker = stage.worker("session")
    stage.until_all_write("parent", "session")
    kill(worker, "both")
    worker.wait()
    # Status 6: the event is kept, and there is no broker.
    assert stage.line("jobs", *(word.format(job_id) for word in words)).status in (0, 6)
    job = stage.hf.jobs.peek(job_id)
    assert job is not None and job.status is JobStatus.CANCELLED
    assert stage.alive() == []


def test_a_cancellation_that_arrives_ends_what_a_worker_left_that_was_killed_with_its_guardian(
    stage: Stage,
) -> None:
    job_id = stage.register()
    worker = stage.worker("session")
    stage.until_all_write("parent", "session")
    kill(worker, "both")
    worker.wait()
    job = stage.hf.jobs.peek(job_id)
    assert job is not None
    event = Event(
        seq=job.last_seq + 1,
        job_id=job_id,
        event=EventKind.CANCELLED,
        timestamp=stage.hf.store.now(),
        detail="",
    )
    assert stage.hf.job_events.receive(to_json(signed(event, job)), topic=job.events_topic).news
    assert stage.alive() == []


def test_sigterm_of_the_worker_ends_the_whole_tree(stage: Stage) -> None:
    job_id = stage.register()
    worker = stage.worker("session", "no_fifo", "no_mark")
    stage.until_all_write("parent", "session", "no_fifo", "no_mark")
    worker.send_signal(signal.SIGTERM)
    assert done(worker) == 0
    assert stage.alive() == []
    job = stage.hf.jobs.peek(job_id)
    assert job is not None and (job.status, job.attempt, job.deaths) == (JobStatus.PENDING, 1, 0)
    assert stage.fifos() == []


def test_a_time_limit_ends_the_whole_tree(stage: Stage) -> None:
    job_id = stage.register(timeout_sec=3)
    worker = stage.worker("session", options=("--once",))
    stage.until_all_write("parent", "session")
    assert done(worker) == 1
    assert stage.alive() == []
    job = stage.hf.jobs.peek(job_id)
    assert job is not None and job.error_code == "timed_out"


def test_the_job_completes_when_what_its_command_left_is_ended(any_stage: Stage) -> None:
    stage = any_stage
    job_id = stage.register()
    left = (
        "echo $$ >> pids; trap 'sleep 1; echo tidied >> lines; exit' TERM; echo on >> lines; "
        "while :; do sleep 0.02; done"
    )
    worker = stage.start(
        f'setsid sh -c "{left.replace("$", chr(92) + "$")}" & until [ -s lines ]; do sleep 0.02; '
        "done; echo ok",
        "--once",
    )
    until(
        lambda: (
            (job := stage.hf.jobs.peek(job_id)) is not None
            and job.status is not JobStatus.PENDING
            and job.status.ended
        )
    )
    assert stage.alive() == []
    assert len(stage.pids()) == 1
    assert stage.lines() == ["on", "tidied"]
    assert done(worker) == 0
    job = stage.hf.jobs.peek(job_id)
    assert job is not None and (job.status, job.result) == (JobStatus.COMPLETED, "ok")
    assert stage.fifos() == []


def test_a_validation_leaves_nothing_behind_either(stage: Stage) -> None:
    stage.register()
    worker = stage.line.start(
        *("jobs", "run", "--agent-session", LABEL, "--once", "-q", "--validate"),
        "sh -c 'sh member.sh left & until [ -s pids ]; do sleep 0.02; done'",
        *("--", "true"),
    )
    assert done(worker) == 0
    assert len(stage.pids()) == 1
    assert stage.alive() == []
    assert stage.fifos() == []


def test_a_worker_ends_what_a_killed_guardian_had(stage: Stage) -> None:
    job_id = stage.register()
    worker = stage.worker("session", "no_fifo", "no_mark", options=("--once",))
    stage.until_all_write("parent", "session", "no_fifo", "no_mark")
    os.kill(children(worker.pid)[0], signal.SIGKILL)
    assert done(worker) == 1
    assert stage.alive() == []
    job = stage.hf.jobs.peek(job_id)
    assert job is not None and (job.status, job.error_code) == (JobStatus.ERROR, "command_failed")
    assert stage.fifos() == []


@pytest.mark.parametrize("kind", ["unmarked", "deaf_unmarked"])
def test_a_worker_ends_the_tree_of_a_killed_guardian_without_fifo_and_mark(
    any_stage: Stage, kind: str
) -> None:
    """Only its parent shows its owner: the worker, which adopts it."""
    stage = any_stage
    job_id = stage.register()
    worker = stage.worker(kind, options=("--once",))
    stage.until_all_write("parent", kind.removesuffix("_unmarked"))
    os.kill(children(worker.pid)[0], signal.SIGKILL)
    assert done(worker) == 1
    assert stage.alive() == []
    job = stage.hf.jobs.peek(job_id)
    assert job is not None and (job.status, job.error_code) == (JobStatus.ERROR, "command_failed")
    assert stage.fifos() == []


def test_a_worker_leaves_the_children_alone_that_it_was_executed_with(stage: Stage) -> None:
    """As of a shell that started something and then executed the worker in its own place. Those are
    not of the tree.
    """
    stage.register()
    words = [
        *ENTRY,
        "jobs",
        "run",
        "--agent-session",
        LABEL,
        "-q",
        "--once",
        "--",
        "sh",
        "-c",
        "exec sh member.sh parent",
    ]
    worker = stage.shell(f"sleep 1000 > /dev/null 2>&1 & echo $! > other; exec {shlex.join(words)}")
    stage.until_all_write("parent")
    other = int((stage.folder / "other").read_text())
    [guardian] = [pid for pid in children(worker.pid) if pid != other]
    os.kill(guardian, signal.SIGKILL)
    try:
        assert done(worker) == 1
        assert stage.alive() == []
        assert stage.is_member(other)
    finally:
        os.kill(other, signal.SIGKILL)


def test_an_attempt_after_a_requeue_waits_for_the_one_before(stage: Stage) -> None:
    """The old worker lives, and ends its command while the next worker has the job already."""
    job_id = stage.register()
    slow = (
        "echo $$ >> pids; trap 'sleep 1; echo 1 tidied >> lines; exit' TERM; echo 1 on >> lines; "
        "while :; do sleep 0.02; done"
    )
    first = stage.start(slow, "--once")
    until(lambda: stage.lines() == ["1 on"])
    second = stage.worker(options=("--once", "--wait", "100"))
    assert stage.line("jobs", "requeue", "--job", job_id).status == 0
    assert done(second) == 0
    assert done(first) == 4
    stage.check_second_attempt(job_id, deaths=0)
    assert stage.lines() == ["1 on", "1 tidied", "2 later"]


_TIDY = """
tidy() { until [ -e go ]; do sleep 0.02; done; echo 1 tidied >> lines; exit; }
trap tidy TERM
echo $$ >> pids
echo 1 on >> lines
"""
_SLOW = _TIDY + "while :; do sleep 0.02; done"
"""A command that takes SIGTERM for a request to tidy up, and has done so when the test says `go`.
"""


def pick(stage: Stage) -> int:
    """One look for a job; its exit status."""
    return stage.line("jobs", "pick", "--agent-session", LABEL).status


def slow_attempt_taken_away(stage: Stage, verb: str) -> str:
    """A job that is pending again while its first command tidies up under a live worker."""
    job_id = stage.register()
    stage.start(_SLOW, "--once")
    until(lambda: stage.lines() == ["1 on"])
    assert (
        stage.line("jobs", "requeue" if verb == "requeue" else "cancel", "--job", job_id).status
        == 0
    )
    if verb == "retry":
        assert stage.line("jobs", "retry", job_id).status == 0
    return job_id


def check_picked(stage: Stage, job_id: str) -> None:
    """The job was given out when nothing of the first attempt was left."""
    assert stage.alive() == []
    assert stage.lines() == ["1 on", "1 tidied"]
    job = stage.hf.jobs.peek(job_id)
    assert job is not None and (job.status, job.attempt, job.deaths) == (JobStatus.RUNNING, 2, 0)


@pytest.mark.parametrize("verb", ["requeue", "retry"])
def test_a_one_shot_pick_passes_over_a_job_whose_old_command_still_ends(
    any_stage: Stage, verb: str
) -> None:
    stage = any_stage
    job_id = slow_attempt_taken_away(stage, verb)
    assert (pick(stage), stage.hf.jobs.pick_pending(LABEL)) == (3, None)
    assert stage.alive() != []
    shown = stage.line("jobs", "get", "--job", job_id).out
    assert any(str(pid) in shown for pid in stage.alive()), shown
    # Another job of the same queue need not wait.
    other = stage.register()
    assert stage.line("jobs", "pick", "--agent-session", LABEL).out == f"{other}\n"
    (stage.folder / "go").touch()
    until(lambda: pick(stage) == 0)
    check_picked(stage, job_id)


def test_a_waiting_pick_gets_such_a_job_when_the_last_process_is_gone(any_stage: Stage) -> None:
    stage = any_stage
    job_id = slow_attempt_taken_away(stage, "requeue")
    waiter = stage.line.start("jobs", "pick", "--agent-session", LABEL, "--wait", "100")
    assert pick(stage) == 3
    (stage.folder / "go").touch()
    out, err = waiter.communicate(timeout=PATIENCE_S)
    assert (out, waiter.returncode) == (f"{job_id}\n", 0), err
    check_picked(stage, job_id)


def test_a_worker_that_ends_a_job_does_not_get_such_a_job_with_it(stage: Stage) -> None:
    job_id = slow_attempt_taken_away(stage, "requeue")
    first = stage.register(priority=1)
    mine = stage.hf.jobs.pick_pending(LABEL)
    assert mine is not None and mine.job_id == first and mine.token is not None
    assert stage.hf.jobs.finish_and_pick(first, "completed", token=mine.token).picked is None
    assert stage.alive() != []
    (stage.folder / "go").touch()
    assert stage.hf.jobs.pick_pending(LABEL, wait_s=PATIENCE_S) is not None
    check_picked(stage, job_id)


def test_one_shot_picks_end_the_deaf_processes_that_a_stopped_worker_keeps(stage: Stage) -> None:
    """Nobody else ends them: the worker cannot hear that the job was taken away."""
    job_id = stage.register()
    worker = stage.worker("deaf")
    stage.until_all_write("parent", "deaf")
    stop_outside(worker.pid, stage.url)
    assert stage.line("jobs", "requeue", "--job", job_id).status == 0
    until(lambda: pick(stage) == 0)
    assert stage.alive() == []
    job = stage.hf.jobs.peek(job_id)
    assert job is not None and (job.attempt, job.deaths) == (2, 0)


def test_a_retry_after_a_time_limit_waits_for_the_processes_of_a_stopped_worker(
    stage: Stage,
) -> None:
    job_id = stage.register(idle_timeout_sec=2)
    worker = stage.start(_SLOW, "--heartbeat", "0.2")
    until(lambda: stage.lines() == ["1 on"])
    stop_outside(worker.pid, stage.url)
    until(lambda: [job.job_id for job in stage.hf.jobs.reap()] == [job_id])
    assert stage.line("jobs", "retry", job_id).status == 0
    assert pick(stage) == 3
    assert stage.alive() != []
    (stage.folder / "go").touch()
    until(lambda: pick(stage) == 0)
    check_picked(stage, job_id)


def test_a_retry_waits_for_a_command_that_reported_its_end_and_still_cleans_up(
    stage: Stage,
) -> None:
    job_id = stage.register()
    tell = (
        f"{' '.join(ENTRY)} jobs publish {job_id} error --token $HOLDFAST_JOB_TOKEN --detail "
        "failed > /dev/null 2>&1"
    )
    stage.start(f"{_TIDY}{tell}\ntidy", "--once")
    until(lambda: (job := stage.hf.jobs.peek(job_id)) is not None and job.status is JobStatus.ERROR)
    assert stage.line("jobs", "retry", job_id).status == 0
    assert pick(stage) == 3
    assert stage.alive() != []
    (stage.folder / "go").touch()
    until(lambda: pick(stage) == 0)
    check_picked(stage, job_id)


def test_a_job_that_was_ended_by_its_limit_under_a_stopped_worker_loses_its_processes(
    stage: Stage,
) -> None:
    job_id = stage.register(idle_timeout_sec=2)
    worker = stage.worker("session", options=("--heartbeat", "0.2"))
    stage.until_all_write("parent", "session")
    stop_outside(worker.pid, stage.url)
    until(lambda: [job.job_id for job in stage.hf.jobs.reap()] == [job_id])
    until(lambda: stage.alive() == [])
    job = stage.hf.jobs.peek(job_id)
    assert job is not None and job.error_code == "timed_out"
    assert state_of(worker.pid) == "T"


def test_an_idle_worker_leaves_no_fifo_when_it_ends(any_stage: Stage) -> None:
    stage = any_stage
    assert done(stage.worker(options=("--wait", "0"))) == 0
    waiting = stage.worker()
    until(lambda: len(stage.fifos()) == 1, saw=stage.fifos)
    waiting.send_signal(signal.SIGTERM)
    assert done(waiting) == 0
    assert stage.fifos() == []


def test_the_file_of_a_job_keeps_the_tree_of_its_claim(tmp_path: Path) -> None:
    line = CommandLine(tmp_path, MQTT_PORT="9")
    there = ("--registry-dir", str(tmp_path / "jobs"))
    assert (
        line(
            "jobs", "register", "--prompt", "x", "--agent-session", LABEL, "--id", "mine", *there
        ).status
        == 0
    )
    script = (
        f"cat jobs/mine.json; {' '.join(ENTRY)} jobs get --job mine --json; echo $HOLDFAST_CUSTODY"
    )
    ran = line(
        "jobs", "run", "--agent-session", LABEL, "--once", "-q", *there, "--", "sh", "-c", script
    )
    assert ran.status == 0, ran
    *documents, mark = ran.out.rstrip("\n").rpartition("\n")[::2]
    at = documents[0].rindex('{"schema_version"')
    stored, shown = json.loads(documents[0][:at]), json.loads(documents[0][at:])
    assert stored["claimed_by"] == shown["claimed_by"]
    tree = stored["claimed_by"]["tree"]
    assert mark.split(":") == [tree, f"{tree}.{stored['token']}"]
    # Another program reads a folder of jobs: nothing of the trees lies among them.
    assert [path.name for path in (tmp_path / "jobs").glob("*") if path.suffix == ".json"] == [
        "mine.json"
    ]
