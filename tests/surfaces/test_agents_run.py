"""`holdfast agents run` and `start`: real commands, a real tmux, real kills. An agent is resolvable
as long as it runs.
"""

import json
import os
import shlex
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.domains.agents import manifest as manifests
from holdfast.domains.agents.records import id_of
from holdfast.domains.gateway.adapter import TmuxSpec, spec_of_manifest
from holdfast.kernel.errors import (
    NotFound,
    ProcessDead,
    ProcessNotInSession,
    TargetUnknown,
    TmuxSessionGone,
)
from holdfast.kernel.holder import Liveness
from holdfast.kernel.limits import AGENT_RESERVED_S, TMUX_ANSWER_S
from tests.harness.timeouts import PATIENCE_S, until
from tests.harness.tmux_server import tmux_server
from tests.surfaces.agent_bench import AgentBench, agent_bench, ended
from tests.surfaces.locking import end, line, remark, trapping

pytestmark = pytest.mark.prove

SHORT_S = "1.5"
"""A lease that is renewed every half second."""
LONG_S = str(PATIENCE_S)
"""A moment that no busy machine makes too short: what ends in it is seen when it ends."""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[AgentBench]:
    with agent_bench(tmp_path) as made:
        yield made


def gone(bench: AgentBench, agent_id: str) -> bool:
    try:
        bench.hf.agents.get(agent_id)
    except NotFound:
        return True
    return False


# --- run ---


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -KILL $$"], 137),
        (["nosuch"], 127),
        ([__file__], 126),
    ],
)
def test_the_exit_status_is_the_commands_and_nothing_is_left(
    bench: AgentBench, command: list[str], status: int
) -> None:
    ran = bench("agents", "run", "gpu", "--", *command)
    assert ran.status == status
    assert bench.hf.agents.list_agents() == []
    assert bench.own_folders() == []
    if status > 125 and status < 128:
        assert ran.err.endswith("no agent was published\n")


def test_the_command_is_the_holder_and_knows_its_name(bench: AgentBench) -> None:
    process, pid = bench.hold("gpu", "--json")
    answer = json.loads(remark(process))
    agent = bench.hf.agents.resolve("gpu").unwrap()
    assert answer["generation_id"] == agent.generation_id
    assert agent.holder is not None and agent.holder.pid == pid
    assert (agent.identity.backend, agent.identity.tool, agent.terminal) == ("command", "sh", None)
    environment = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    said = dict(entry.split("=", 1) for entry in environment if entry.startswith("HOLDFAST_AGENT_"))
    assert said == {
        "HOLDFAST_AGENT_ID": agent.agent_id,
        "HOLDFAST_AGENT_NAME": "HOLDFAST-gpu",
        "HOLDFAST_AGENT_GENERATION": agent.generation_id,
        "HOLDFAST_AGENT_TOKEN": str(agent.token),
        "HOLDFAST_AGENT_MANIFEST": agent.runtime.manifest_path,
    }
    manifest = manifests.from_json(Path(agent.runtime.manifest_path).read_bytes())
    assert (manifest.agent_id, manifest.generation_id, manifest.backend) == (
        agent.agent_id,
        agent.generation_id,
        "command",
    )
    assert manifest.working_directory == str(bench.folder)
    assert end(process)[0] == 0
    assert gone(bench, agent.agent_id) and bench.own_folders() == []


def test_an_agent_stays_resolvable_past_its_lease_and_is_gone_after_it(bench: AgentBench) -> None:
    process, _ = bench.hold("gpu", "--lease", SHORT_S)
    first = bench.hf.agents.get(id_of("HOLDFAST-gpu"))
    bench.outlives(first)
    until(lambda: bench.hf.agents.resolve("gpu").record is not None)
    now = bench.hf.agents.get(first.agent_id)
    assert (now.generation_id, now.token) == (first.generation_id, first.token)
    assert end(process)[0] == 0
    assert gone(bench, first.agent_id)


def test_a_second_run_of_a_name_is_refused_and_its_command_never_begins(bench: AgentBench) -> None:
    process, _ = bench.hold("gpu")
    ran = bench("agents", "run", "HOLDFAST-gpu", "--", "touch", "begun")
    assert ran.status == 4 and "--take-over" in ran.err
    assert not (bench.folder / "begun").exists()
    assert len(bench.own_folders()) == 1
    assert end(process)[0] == 0


def test_a_replaced_agent_is_notified_and_ended(bench: AgentBench) -> None:
    first = bench.run("gpu", "--", *trapping("SIGTERM"))
    assert line(first) == "up"
    second, _ = bench.hold("gpu", "--take-over")
    assert line(first) == "got"
    status, _, err = end(first)
    assert status == 4 and "another generation's by now" in err
    # It took nothing of its successor's with it.
    assert bench.hf.agents.resolve("gpu").record is not None
    assert end(second)[0] == 0


def test_on_lost_ignore_lets_it_go_on(bench: AgentBench) -> None:
    first, pid = bench.hold("gpu", "--on-lost", "ignore")
    second, _ = bench.hold("gpu", "--take-over")
    assert "another generation's by now" in remark(first)
    os.kill(pid, 0)
    # It lives, and may still need what it had.
    assert len(bench.own_folders()) == 2
    assert end(first)[0] == 4
    assert end(second)[0] == 0


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"])
def test_signals_are_the_commands(bench: AgentBench, name: str) -> None:
    process = bench.run("gpu", "--", *trapping(name))
    assert line(process) == "up"
    process.send_signal(getattr(signal, name))
    assert line(process) == "got"
    assert end(process)[0] == 42
    assert bench.hf.agents.list_agents() == []


def test_killed_with_its_command_it_is_succeeded_at_once(bench: AgentBench) -> None:
    process, pid = bench.hold("gpu")
    agent = bench.hf.agents.resolve("gpu").unwrap()
    bench.kill_keepers(agent, process.pid)
    # The command lives on without its keeper, and so does its claim.
    ran = bench("agents", "run", "gpu", "--", "true")
    assert ran.status == 4 and f"process {pid}" in ran.err
    assert bench.hf.agents.liveness(agent).process is Liveness.ALIVE
    os.kill(pid, signal.SIGKILL)
    bench.tree_ends(agent)
    assert len(bench.own_folders()) == 1
    assert bench("agents", "run", "gpu", "--", "true").status == 0
    assert bench.until_logged("agent.taken_over", agent.agent_id).data["why"] == "gone"
    assert bench.own_folders() == []


def test_cleanup_takes_the_folder_of_a_killed_agent_and_of_none_that_lives(
    bench: AgentBench,
) -> None:
    process, pid = bench.hold("gpu")
    agent = bench.hf.agents.resolve("gpu").unwrap()
    bench.kill_keepers(agent, process.pid)
    assert "removed" not in bench("agents", "cleanup", "--grace", "0").out
    # Its command lives on, and may need it.
    assert len(bench.own_folders()) == 1
    os.kill(pid, signal.SIGKILL)
    bench.tree_ends(agent)
    assert "planned" in bench("agents", "cleanup", "--dry-run").out
    assert len(bench.own_folders()) == 1
    assert "removed" in bench("agents", "cleanup").out
    assert bench.own_folders() == []


def test_only_a_folder_that_was_made_for_a_dead_one_is_cleared_away(bench: AgentBench) -> None:
    agents = bench.folder / "state" / "holdfast" / "agents"
    agent_id = id_of("HOLDFAST-gpu")
    kept = agents / "another" / "generation" / "manifest.json"
    for folder in (kept.parent, agents / agent_id / "another"):
        folder.mkdir(parents=True)
    kept.write_text("{}")
    for generation, root in (
        ("..", f"{agents}/{agent_id}/.."),
        ("../another", f"{agents}/{agent_id}/../another"),
        ("g", agents),
    ):
        with subprocess.Popen(["sleep", "600"]) as dead:
            holder = bench.hf.processes.of(dead.pid)
            dead.kill()
        bench.hf.agents.publish(
            "gpu",
            backend="command",
            tool="x",
            manifest_path="/m",
            session_root=str(root),
            holder=holder,
            generation_id=generation,
        )
        assert bench("agents", "run", "gpu", "--", "true").status == 0
        assert kept.exists()
    bench.hf.agents.publish(
        "gpu",
        backend="command",
        tool="x",
        manifest_path="/m",
        session_root=str(kept.parent),
        holder=holder,
        generation_id="g",
    )
    assert "removed" in bench("agents", "cleanup").out
    assert kept.exists()


def test_a_session_root_of_the_users_own_stays(bench: AgentBench) -> None:
    assert bench("agents", "run", "gpu", "--session-root", "roots/gpu", "--", "true").status == 0
    manifest = manifests.from_json((bench.folder / "roots" / "gpu" / "manifest.json").read_bytes())
    assert manifest.agent_name == "HOLDFAST-gpu"
    (bench.folder / "file").write_text("")
    ran = bench("agents", "run", "gpu", "--session-root", "file/x", "--", "true")
    assert ran.status == 6 and "--session-root" in ran.err
    assert bench.hf.agents.list_agents() == []


def test_a_refused_agent_leaves_the_manifest_of_the_other_alone(bench: AgentBench) -> None:
    process, _ = bench.hold("gpu", "--session-root", "root")
    path = bench.folder / "root" / "manifest.json"
    before = path.read_bytes()
    assert bench("agents", "run", "gpu", "--session-root", "root", "--", "true").status == 4
    assert bench("agents", "start", "gpu", "--session-root", "root", "--", "true").status == 4
    assert path.read_bytes() == before
    assert end(process)[0] == 0


# --- start ---


def test_an_agent_in_tmux_may_be_controlled(bench: AgentBench) -> None:
    ran = bench("agents", "start", "gpu", "--json", "--", "sleep", "600")
    assert ran.status == 0, ran.err
    answer = json.loads(ran.out)
    agent = bench.hf.agents.resolve("gpu").unwrap()
    assert (answer["token"], answer["generation_id"]) == (agent.token, agent.generation_id)
    assert bench.tmux.sessions() == {"HOLDFAST-gpu"}
    target = bench.hf.agents.control_target("gpu")
    assert (target.session_name, target.manifest.backend) == ("HOLDFAST-gpu", "local_interactive")
    assert target.manifest.working_directory == str(bench.folder)
    assert agent.holder is not None
    assert Path(f"/proc/{agent.holder.pid}/comm").read_text().strip() == "sleep"
    parts = json.loads(bench("agents", "get", "gpu", "--json").out)["liveness"]
    assert parts == {"lease": "alive", "process": "alive", "tmux_session": "alive", "gateway": None}


def test_a_password_is_not_among_the_words_of_any_process(
    tmp_path: Path, postgres_url: str
) -> None:
    """Those that begin a tmux server stay for as long as it runs, for everybody to see."""
    url = postgres_url.replace("holdfast@", "holdfast:s3cret@")
    with agent_bench(tmp_path, url) as bench:
        words = bench.folder / "words"
        # A tmux that records its arguments.
        program = bench.folder / "bin" / "tmux"
        program.parent.mkdir()
        program.write_text(
            f'#!/bin/sh\necho "$@" >> {words}\nexec {shutil.which("tmux")} -f /dev/null "$@"\n'
        )
        program.chmod(0o700)
        bench.environment["PATH"] = f"{program.parent}:{bench.environment['PATH']}"
        bench.environment["PGPASSWORD"] = "s3cret too"
        agent = bench.start_agent("gpu")
        assert "new-session" in words.read_text()
        assert "s3cret" not in words.read_text()
        assert agent.holder is not None
        around = Path(f"/proc/{agent.holder.pid}/environ").read_text().split("\0")
        assert {f"HOLDFAST_STORE={url}", "PGPASSWORD=s3cret too"} <= set(around)
        (manifest,) = bench.own_folders()
        assert list(manifest.parent.iterdir()) == [manifest]
        bench.tmux("kill-session", "-t", "=HOLDFAST-gpu")
        bench.until_logged("agent.removed", agent.agent_id)


def test_an_agent_in_tmux_stays_resolvable_past_its_lease_and_is_gone_with_its_tmux_session(
    bench: AgentBench,
) -> None:
    first = bench.start_agent("gpu", "--lease", SHORT_S)
    bench.outlives(first)
    until(lambda: bench.hf.agents.resolve("gpu").record is not None)
    assert bench.hf.agents.get(first.agent_id).token == first.token
    assert first.holder is not None
    bench.tmux("kill-session", "-t", "=HOLDFAST-gpu")
    ended(first.holder.pid)
    bench.until_logged("agent.removed", first.agent_id)
    assert gone(bench, first.agent_id)


def test_an_agent_in_tmux_is_gone_when_its_command_ends(bench: AgentBench) -> None:
    fifo = bench.folder / "end"
    os.mkfifo(fifo)
    agent = bench.start_agent("gpu", command=("cat", str(fifo)))
    fifo.write_text("")
    bench.until_logged("agent.removed", agent.agent_id)
    assert gone(bench, agent.agent_id)


def test_killed_with_its_tmux_session_gone_it_is_succeeded_at_once(bench: AgentBench) -> None:
    first = bench.start_agent("gpu")
    assert first.holder is not None
    pane = bench.tmux.pane_pid("HOLDFAST-gpu")
    bench.kill(first, pane)
    # The pane's end is tmux's to notice, and its session's end follows; ask until it has.
    while bench.tmux.sessions():
        continue
    assert not gone(bench, first.agent_id)
    second = bench.start_agent("gpu")
    assert second.generation_id != first.generation_id and second.token > first.token
    assert bench.until_logged("agent.taken_over", first.agent_id).data["why"] == "gone"
    assert [path.parent.name for path in bench.own_folders()] == [second.generation_id]


def test_a_dead_launcher_with_a_living_tmux_session_is_not_taken_over(bench: AgentBench) -> None:
    first = bench.start_agent("gpu", command=("sh", "-c", "echo up; exec cat"))
    assert first.holder is not None
    bench.tmux("new-window", "-d", "-t", "=HOLDFAST-gpu:", "sleep 600")
    pane = int(
        bench.tmux("list-panes", "-s", "-t", "=HOLDFAST-gpu", "-F", "#{pane_pid}").split()[0]
    )
    bench.kill(first, pane)
    assert bench.tmux.sessions() == {"HOLDFAST-gpu"}
    ran = bench("agents", "start", "gpu", "--tmux-session", "other", "--", "true")
    assert ran.status == 4 and "not proved to be gone" in ran.err
    assert bench.tmux.sessions() == {"HOLDFAST-gpu"}
    bench.tmux("kill-session", "-t", "=HOLDFAST-gpu")
    bench.start_agent("gpu", "--tmux-session", "other")


def test_a_stopped_tmux_hangs_nothing_and_proves_nothing(bench: AgentBench) -> None:
    first = bench.start_agent("gpu")
    assert first.holder is not None
    pane = bench.tmux.pane_pid("HOLDFAST-gpu")
    bench.tmux.stop()
    begun_s = time.monotonic()
    bench.kill(first, pane)
    parts = json.loads(bench("agents", "get", "gpu", "--json").out)["liveness"]
    assert (parts["process"], parts["tmux_session"]) == ("dead", "unknown")
    assert json.loads(bench("agents", "cleanup", "--json").out)["planned"] == []
    ran = bench("agents", "run", "gpu", "--", "true")
    assert ran.status == 4 and "not proved to be gone" in ran.err
    assert time.monotonic() - begun_s < 6 * TMUX_ANSWER_S


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("exit 3", 3),
        ("exit 0", 0),
        ("kill -KILL $$", 137),
        ("seq 100; exit 3", 3),
        ("exec /nosuch/program", 127),
    ],
)
def test_a_program_that_dies_at_once_is_reported_with_status_and_screen_and_removed(
    bench: AgentBench, script: str, status: int
) -> None:
    """It was said to run."""
    bench.tmux("new-session", "-d", "-s", "another")
    ran = bench(
        "agents",
        "start",
        "boom",
        "--watch",
        LONG_S,
        "--",
        "sh",
        "-c",
        f"echo no such model; {script}",
    )
    assert (ran.status, ran.out) == (1, "")
    assert f"exit status {status}" in ran.err
    shown = ran.err.split(":\n", 1)[1].splitlines()
    last = [*map(str, range(1, 101))][-49:] if "seq" in script else ["no such model"]
    assert [line for line in shown if "nosuch" not in line][-len(last) :] == last
    assert "Pane is dead" not in ran.err
    assert bench.tmux.sessions() == {"another"}
    assert bench.hf.agents.list_agents() == []
    # Neither a manifest nor what the pane was handed: only how it ended.
    left = [path for path in (bench.folder / "state").rglob("*") if path.is_file()]
    assert [path.name for path in left] == [f"{id_of('HOLDFAST-boom')}.json"]
    assert stat.S_IMODE(left[0].stat().st_mode) == 0o600
    bench.start_agent("boom")


def test_a_pane_that_cannot_publish_is_reported_with_its_last_screen(bench: AgentBench) -> None:
    broken = bench.folder / "broken"
    (broken / "holdfast").mkdir(parents=True)
    # The package as it is, but for a pane.
    (broken / "holdfast" / "__init__.py").write_text(
        "import os, sys\nif 'TMUX' in os.environ: sys.exit('it is broken')\n"
        f"__path__.append({str(Path(holdfast.__file__).parent)!r})\nexec(open({holdfast.__file__!r}).read())\n"
    )
    bench.environment["PYTHONPATH"] = str(broken)
    ran = bench("agents", "start", "boom", "--", "sleep", "600")
    assert (ran.status, ran.out) == (1, "") and "it is broken" in ran.err
    assert (
        bench.tmux.sessions() == set()
        and bench.hf.agents.list_agents() == []
        and bench.own_folders() == []
    )


def test_a_program_that_ends_after_the_first_moment_takes_its_tmux_session_with_it(
    bench: AgentBench,
) -> None:
    fifo = bench.folder / "end"
    os.mkfifo(fifo)
    agent = bench.start_agent("gpu", command=("sh", "-c", f"cat {fifo}; exit 3"))
    assert "remain-on-exit" not in bench.tmux("show-options", "-p", "-t", "=HOLDFAST-gpu:")
    fifo.write_text("")
    bench.until_logged("agent.removed", agent.agent_id)
    until(lambda: bench.tmux.sessions() == set())


def test_a_start_that_is_interrupted_in_the_first_moment_leaves_the_pane_as_it_is_later(
    bench: AgentBench,
) -> None:
    start = bench.start("agents", "start", "gpu", "--watch", LONG_S, "--", "sleep", "600")
    agent_id = id_of("HOLDFAST-gpu")
    bench.until_logged("agent.published", agent_id, times=2)
    assert "remain-on-exit" in bench.tmux("show-options", "-p", "-t", "=HOLDFAST-gpu:")
    start.send_signal(signal.SIGINT)
    start.communicate(timeout=PATIENCE_S)
    assert start.returncode == 130
    until(lambda: "remain-on-exit" not in bench.tmux("show-options", "-p", "-t", "=HOLDFAST-gpu:"))
    assert bench.hf.agents.resolve("gpu").record is not None


def environment_of(pid: int) -> dict[bytes, bytes]:
    found = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(entry.split(b"=", 1) for entry in found if entry)


def test_the_environment_of_the_caller_is_passed_on_whole_and_shown_to_nobody(
    bench: AgentBench,
) -> None:
    """A tmux server that ran already gave its own."""
    bench.tmux("new-session", "-d", "-s", "another")
    mine = {
        "FOO": "bar",
        "SECRET": "s3cret",
        "LINES_OF_IT": "a\nb=c\n'$(touch owned)'\n",
        "EMPTY": "",
        "not.a-name%%": "() { :; }",
        "BYTES": b"\xff\xfe \xc3\xa9".decode(errors="surrogateescape"),
        "LARGE": "x" * 100_000,
        "TERM": "dumb",
        "COLUMNS": "20",
        "TMUX_PANE": "%77",
        **{f"MANY_{number}": f"value {number};" for number in range(3000)},
    }
    bench.environment.update(mine)
    agent = bench.start_agent("gpu")
    assert agent.holder is not None
    found = environment_of(agent.holder.pid)
    given = {os.fsencode(name): os.fsencode(value) for name, value in bench.environment.items()}
    own = {b"TERM", b"TERM_PROGRAM", b"TERM_PROGRAM_VERSION", b"TMUX", b"TMUX_PANE", b"COLUMNS"}
    assert {name: found.get(name) for name in given if name not in own} == {
        n: v for n, v in given.items() if n not in own
    }
    assert {
        name for name in found.keys() - given.keys() - own if not name.startswith(b"HOLDFAST_")
    } <= {b"LC_CTYPE"}
    # The terminal is the pane's.
    assert found[b"TMUX"].startswith(os.fsencode(bench.tmux.socket)) and found[b"TERM"] not in (
        b"dumb",
        b"",
    )
    assert (
        found[b"TMUX_PANE"].decode()
        == bench.tmux("list-panes", "-t", "=HOLDFAST-gpu", "-F", "#{pane_id}").strip()
    )
    assert b"COLUMNS" not in found
    for shown in (
        bench.tmux("show-environment", "-t", "=HOLDFAST-gpu"),
        bench.tmux("show-environment", "-g"),
    ):
        assert "s3cret" not in shown and "FOO" not in shown
    words = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not any(b"s3cret" in word for word in words if b"pytest" not in word)
    (manifest,) = bench.own_folders()
    assert list(manifest.parent.iterdir()) == [manifest]


def test_a_new_pane_is_large_enough_to_be_read(bench: AgentBench) -> None:
    bench.tmux("new-session", "-d", "-s", "another")
    bench.start_agent("gpu")
    size = bench.tmux("list-panes", "-t", "=HOLDFAST-gpu", "-F", "#{pane_width}x#{pane_height}")
    assert size == "200x50\n"


def test_what_is_said_of_its_terminal_is_in_its_manifest(bench: AgentBench) -> None:
    said = [
        "--ready-regex",
        "^-> $",
        "--interrupt-key",
        "Escape",
        "--quiet-ms",
        "250",
        "--settle",
        "2.5",
        "--answer-timeout",
        "90",
    ]
    agent = bench.start_agent("gpu", *said)
    adapter = json.loads(Path(agent.runtime.manifest_path).read_text())["adapter"]
    assert adapter == {
        "kind": "tmux",
        "ready_regex": "^-> $",
        "interrupt": "Escape",
        "quiet_ms": 250,
        "settle_s": 2.5,
        "answer_timeout_s": 90.0,
        "socket_path": str(bench.tmux.socket),
    }
    spec = spec_of_manifest(json.loads(Path(agent.runtime.manifest_path).read_text()))
    assert isinstance(spec, TmuxSpec) and (spec.session, spec.settle_s) == ("HOLDFAST-gpu", 2.5)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--ready-regex", "("], "ready_regex"),
        (["--ready-regex", " "], "ready_regex"),
        (["--ready-regex", "\udcff"], "not UTF-8"),
        (["--interrupt-key", "C-z"], "C-z"),
        (["--settle", "0"], "--settle"),
        (["--settle", "nan"], "settle"),
        (["--answer-timeout", "1e9"], "answer_timeout"),
        (["--quiet-ms", "0"], "--quiet-ms"),
        (["--watch", "nan"], "--watch"),
        (["--watch", "inf"], "--watch"),
    ],
)
def test_what_cannot_be_said_of_a_terminal_is_one_error_and_nothing_is_started(
    bench: AgentBench, words: list[str], names: str
) -> None:
    ran = bench("agents", "start", "gpu", *words, "--", "sleep", "600")
    assert (ran.status, ran.out) == (2, "") and names in ran.err and "Traceback" not in ran.err
    assert bench.tmux.sessions() == set() and bench.own_folders() == []
    assert [entry for batch in bench.hf.log.since() for entry in batch.entries] == []


def test_what_is_not_utf_8_is_one_error_and_no_agent(bench: AgentBench) -> None:
    """A manifest is JSON, which can carry no other bytes."""
    ran = bench("agents", "run", "gpu", "--", "touch", "begun", "\udcff")
    assert ran.status == 2 and "not UTF-8" in ran.err
    folder = bench.folder / "odd-\udcff"
    folder.mkdir()
    ran = bench("agents", "run", "gpu", "--", "touch", f"{bench.folder}/begun", cwd=folder)
    assert ran.status == 2 and "not UTF-8" in ran.err
    assert not (bench.folder / "begun").exists() and bench.hf.agents.list_agents() == []


def test_an_agent_without_a_terminal_gets_no_hint_about_one(bench: AgentBench) -> None:
    ran = bench("agents", "run", "gpu", "--ready-regex", "> $", "--", "touch", "begun")
    assert ran.status == 2 and "tmux" in ran.err
    assert not (bench.folder / "begun").exists() and bench.hf.agents.list_agents() == []


def test_a_strangers_tmux_session_of_the_same_name_is_no_target(bench: AgentBench) -> None:
    """A prompt ran in the stranger's shell."""
    agent = bench.start_agent("gpu")
    assert agent.holder is not None
    assert bench("agents", "target", "gpu").status == 0
    pane = bench.tmux.pane_pid("HOLDFAST-gpu")
    bench.kill(agent, pane)
    until(lambda: bench.tmux.sessions() == set())
    for made in (False, True):
        if made:
            bench.tmux("new-session", "-d", "-s", "HOLDFAST-gpu", "sh")
        ran = bench("agents", "target", "gpu")
        assert (ran.status, ran.out) == (4, "") and f"process {agent.holder.pid}" in ran.err
        with pytest.raises(ProcessDead):
            bench.hf.agents.control_target("gpu")


def test_a_living_agent_is_no_target_under_the_name_of_a_strangers_tmux_session(
    bench: AgentBench,
) -> None:
    bench.start_agent("gpu")
    bench.tmux("rename-session", "-t", "=HOLDFAST-gpu", "elsewhere")
    with pytest.raises(TmuxSessionGone):
        bench.hf.agents.control_target("gpu")
    bench.tmux("new-session", "-d", "-s", "HOLDFAST-gpu", "sh")
    ran = bench("agents", "target", "gpu")
    assert (ran.status, ran.out) == (4, "")
    with pytest.raises(ProcessNotInSession):
        bench.hf.agents.control_target("gpu")


def test_a_tmux_that_does_not_answer_makes_no_target(bench: AgentBench) -> None:
    bench.start_agent("gpu")
    bench.tmux.stop()
    with pytest.raises(TargetUnknown, match="tmux does not say"):
        bench.hf.agents.control_target("gpu")


def test_an_agent_on_another_tmux_server_is_found_by_its_manifest(bench: AgentBench) -> None:
    with tmux_server() as another:
        another("new-session", "-d", "-s", "mine")
        bench.environment["TMUX"] = another(
            "display-message", "-p", "-t", "=mine:", "#{socket_path},#{pid},0"
        ).strip()
        agent = bench.start_agent("gpu")
        del bench.environment["TMUX"]
        assert another.sessions() == {"mine", "HOLDFAST-gpu"} and bench.tmux.sessions() == set()
        ran = bench("agents", "target", "gpu")
        assert ran.status == 0, ran.err
        # One of the same name on the user's own is not taken for it.
        bench.tmux("new-session", "-d", "-s", "HOLDFAST-gpu", "sh")
        another("kill-session", "-t", "=HOLDFAST-gpu")
        bench.until_logged("agent.removed", agent.agent_id)
        assert bench("agents", "target", "gpu").status == 1


def test_a_second_start_is_refused_and_leaves_nothing(bench: AgentBench) -> None:
    agent = bench.start_agent("gpu")
    ran = bench("agents", "start", "gpu", "--", "sleep", "600")
    assert ran.status == 4 and "tmux session HOLDFAST-gpu already" in ran.err
    ran = bench("agents", "start", "gpu", "--tmux-session", "other", "--", "sleep", "600")
    assert ran.status == 4 and agent.generation_id in ran.err
    assert bench.tmux.sessions() == {"HOLDFAST-gpu"}
    assert len(bench.own_folders()) == 1
    assert bench.hf.agents.list_agents() == [agent]


def test_what_tmux_cannot_start_leaves_nothing(bench: AgentBench) -> None:
    ran = bench("agents", "start", "gpu", "--tmux-session", "a.b", "--", "true")
    assert ran.status == 2 and "tmux session" in ran.err
    fake = bench.folder / "bin" / "tmux"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho 'it will not' >&2\nexit 1\n")
    fake.chmod(0o755)
    bench.environment["PATH"] = f"{fake.parent}:{bench.environment['PATH']}"
    ran = bench("agents", "start", "gpu", "--", "true")
    assert ran.status == 6 and "it will not" in ran.err
    assert bench.hf.agents.list_agents() == [] and bench.own_folders() == []
    assert bench("agents", "start", "gpu", "--store", "memory:", "--", "true").status == 2


def test_a_start_that_is_killed_keeps_its_id_for_seconds_and_not_for_a_lease(
    bench: AgentBench,
) -> None:
    """Nothing was left that could be seen dead, so the id was taken for a day."""
    fake = bench.folder / "bin" / "tmux"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\ncase $1 in new-session) exec sleep 60;; esac\n")
    fake.chmod(0o755)
    path = bench.environment["PATH"]
    bench.environment["PATH"] = f"{fake.parent}:{path}"
    start = bench.start("agents", "start", "gpu", "--", "sleep", "600", start_new_session=True)
    try:
        bench.until_logged("agent.published", id_of("HOLDFAST-gpu"))
    finally:
        os.killpg(start.pid, signal.SIGKILL)
        start.communicate()
    left = bench.hf.agents.resolve("gpu").unwrap()
    assert (left.lease_expires_at - left.published_at).total_seconds() == AGENT_RESERVED_S
    bench.environment["PATH"] = path
    agent = bench.start_agent("gpu", "--take-over")
    assert (agent.lease_expires_at - agent.published_at).total_seconds() == 24 * 3600


def test_an_unknown_command_is_reported_and_not_started(bench: AgentBench) -> None:
    for command in ("no-such-command", str(bench.folder), ""):
        ran = bench("agents", "start", "gpu", "--", command)
        assert (ran.status, ran.out) == (2, "") and "there is no command" in ran.err
    assert bench.hf.agents.list_agents() == [] and bench.tmux.sessions() == set()


def test_run_inside_tmux_knows_its_tmux_session(bench: AgentBench) -> None:
    from tests.surfaces.command import ENTRY

    fifo = bench.folder / "up"
    os.mkfifo(fifo)
    inner = " ".join(
        [
            shlex.join(ENTRY),
            "agents",
            "run",
            "gpu",
            "--",
            "sh",
            "-c",
            f"'echo up > {fifo}; exec sleep 600'",
        ]
    )
    words = [
        word
        for name in ("HOLDFAST_STORE", "XDG_STATE_HOME")
        for word in ("-e", f"{name}={bench.environment[name]}")
    ]
    bench.tmux("new-session", "-d", "-s", "mine", "-c", str(bench.folder), *words, inner)
    assert fifo.read_text() == "up\n"
    agent = bench.hf.agents.resolve("gpu").unwrap()
    assert (agent.session_name, agent.identity.backend) == ("mine", "local_interactive")
    assert bench.hf.agents.control_target("gpu").session_name == "mine"
