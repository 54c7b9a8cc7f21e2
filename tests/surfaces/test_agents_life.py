"""The life of an agent on the command line: its end is kept, it is stopped, started again, attached
to and joined. Real commands in a real tmux.
"""

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.domains.agents import Agent
from holdfast.domains.agents.records import id_of
from holdfast.kernel.errors import NotFound
from holdfast.runtime.host_process import host_of
from tests.harness.timeouts import PATIENCE_S, until
from tests.surfaces.agent_bench import AgentBench, agent_bench, ended
from tests.surfaces.command import ENTRY
from tests.surfaces.locking import line

pytestmark = pytest.mark.prove


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[AgentBench]:
    with agent_bench(tmp_path) as made:
        yield made


def listed(bench: AgentBench, *words: str) -> list[dict[str, Any]]:
    ran = bench("agents", "list", *words, "--json")
    assert ran.status == 0, ran.err
    found: list[dict[str, Any]] = json.loads(ran.out)
    return found


def without_record(bench: AgentBench, agent: Agent) -> None:
    """Wait until an agent's record is removed."""

    def gone() -> bool:
        try:
            bench.hf.agents.get(agent.agent_id)
        except NotFound:
            return True
        return False

    until(gone)


def holder_pid(agent: Agent) -> int:
    assert agent.holder is not None
    return agent.holder.pid


# --- what is kept of an agent that has ended ---


def test_exit_status_and_last_screen_are_kept(bench: AgentBench) -> None:
    agent = bench.start_agent("gpu", command=("sh", "-c", "seq 100; read line; exit 5"))
    until(lambda: "100" in bench("agents", "logs", "gpu").out)
    live = bench("agents", "logs", "gpu", "-n", "2")
    assert (live.out, live.err) == ("99\n100\n", "")
    bench.tmux("send-keys", "-t", "=HOLDFAST-gpu:", "Enter")
    without_record(bench, agent)
    assert listed(bench) == []
    [entry] = listed(bench, "--all")
    assert (entry["agent_name"], entry["exited"]["exit_status"]) == ("HOLDFAST-gpu", 5)
    assert entry["exited"]["ended_at"] == entry["lease_expires_at"]
    shown = json.loads(bench("agents", "get", "gpu", "--json").out)
    assert shown["exited"] == entry["exited"]
    assert (shown["liveness"]["lease"], shown["liveness"]["process"]) == ("dead", "dead")
    logs = bench("agents", "logs", "gpu")
    assert logs.status == 0 and "exited 5" in logs.err
    assert logs.out.split()[:3] == ["1", "2", "3"]


def test_a_tool_alone_is_started_by_its_program(bench: AgentBench) -> None:
    ran = bench("agents", "start", "gpu", "--tool", "shell", "--json")
    assert ran.status == 0, ran.err
    pid = holder_pid(bench.hf.agents.get(json.loads(ran.out)["agent_id"]))
    assert Path(f"/proc/{pid}/comm").read_text() == "bash\n"
    for words in (("--tool", "generic"), ()):
        refused = bench("agents", "start", "other", *words)
        assert refused.status == 2 and "no command is given" in refused.err
    unknown = bench("agents", "start", "other", "--tool", "nosuch")
    assert unknown.status == 1 and "use one of" in unknown.err, unknown.err


def test_a_killed_agent_is_known_to_be_killed(bench: AgentBench) -> None:
    agent = bench.start_agent("gpu", command=("sh", "-c", "echo I am here; exec sleep 600"))
    os.kill(holder_pid(agent), signal.SIGKILL)
    without_record(bench, agent)
    [entry] = listed(bench, "--all")
    assert entry["exited"]["exit_status"] == 137
    assert bench("agents", "logs", "gpu").out == "I am here\n"


def test_nobody_saw_the_end_when_the_runner_is_killed_too(bench: AgentBench) -> None:
    agent = bench.start_agent("gpu")
    bench.kill(agent, bench.tmux.pane_pid("HOLDFAST-gpu"))
    shown = json.loads(bench("agents", "get", "gpu", "--json").out)
    assert shown["exited"] == {"exit_status": None, "ended_at": None}
    assert "unknown how" in bench("agents", "logs", "gpu").err


def test_what_is_kept_is_for_its_user_alone_and_the_next_run_replaces_it(bench: AgentBench) -> None:
    for status in ("3", "4"):
        ran = bench("agents", "run", "gpu", "--", "sh", "-c", f"exit {status}")
        assert ran.status == int(status)
    [entry] = listed(bench, "--all")
    assert entry["exited"]["exit_status"] == 4
    [note] = (bench.folder / "state").rglob("agent-runs/*/*/*.json")
    assert note.stat().st_mode & 0o777 == 0o600
    note.write_bytes(b"{")
    assert listed(bench, "--all") == []
    assert bench("agents", "get", "gpu").status == 1


def test_another_store_knows_nothing_of_it(bench: AgentBench) -> None:
    assert bench("agents", "run", "gpu", "--", "true").status == 0
    other = bench("--store", f"sqlite:{bench.folder}/other.sqlite", "agents", "list", "--all")
    assert other.out == ""


def test_cleanup_removes_what_is_kept_after_a_week(bench: AgentBench) -> None:
    for name in ("old", "new"):
        bench("agents", "run", name, "--", "true")
    [note] = (bench.folder / "state").rglob(f"agent-runs/*/*/{id_of('HOLDFAST-old')}.json")
    document = json.loads(note.read_bytes())
    document["agent"]["published_at"] = "2020-01-01T00:00:00Z"
    document["end"]["ended_at"] = "2020-01-02T00:00:00Z"
    note.write_text(json.dumps(document))
    planned = json.loads(bench("agents", "cleanup", "--dry-run", "--json").out)["planned"]
    assert [one["why"] for one in planned] == ["old_run"]
    assert note.exists()
    removed = json.loads(bench("agents", "cleanup", "--json").out)["removed"]
    assert [one["detail"] for one in removed] == ["HOLDFAST-old"]
    assert [one["agent_name"] for one in listed(bench, "--all")] == ["HOLDFAST-new"]


def test_logs_of_an_agent_that_never_was(bench: AgentBench) -> None:
    ran = bench("agents", "logs", "nobody")
    assert ran.status == 1 and "there is no agent nobody" in ran.err


def test_an_agent_outside_of_tmux_has_no_pane_to_show(bench: AgentBench) -> None:
    process, pid = bench.hold("gpu")
    ran = bench("agents", "logs", "gpu")
    assert ran.status == 4 and "not in tmux" in ran.err
    os.kill(pid, signal.SIGKILL)
    ended(process.pid)
    assert "exited 137" in bench("agents", "logs", "gpu").err


# --- stop ---


def test_stop_ends_the_tree_and_the_tmux_session_and_removes_the_record(bench: AgentBench) -> None:
    agent = bench.start_agent("gpu", command=("sh", "-c", "sleep 600 & sleep 600"))
    bench.tmux("new-window", "-d", "-t", "=HOLDFAST-gpu:", "sleep 600")
    bench.tmux("new-session", "-d", "-s", "another", "sleep 600")
    done = json.loads(bench("agents", "stop", "gpu", "--json").out)
    assert (done["was_running"], done["killed"], done["tmux_session"]) == (True, False, "ended")
    assert done["exited"]["exit_status"] == 143
    assert bench.tmux.sessions() == {"another"}
    assert listed(bench) == [] and bench.own_folders() == []
    bench.tree_ends(agent)
    again = bench("agents", "stop", "gpu")
    assert again.status == 0 and "does not run: it exited 143" in again.out


def test_an_interactive_shell_is_asked_in_a_way_that_it_hears(bench: AgentBench) -> None:
    bench.start_agent("gpu", command=("bash", "--norc"))
    until(lambda: "bash" in bench("agents", "logs", "gpu").out)
    done = json.loads(bench("agents", "stop", "gpu", "--grace", "600", "--json").out)
    assert (done["killed"], done["exited"]["exit_status"]) == (False, 129)


def test_what_does_not_end_in_time_is_killed(bench: AgentBench) -> None:
    deaf = "trap '' TERM HUP; echo deaf; while :; do sleep 600; done"
    bench.start_agent("gpu", command=("sh", "-c", deaf))
    until(lambda: "deaf" in bench("agents", "logs", "gpu").out)
    done = json.loads(bench("agents", "stop", "gpu", "--grace", "0.2", "--json").out)
    assert (done["killed"], done["exited"]["exit_status"]) == (True, 137)
    assert bench.tmux.sessions() == set()


def test_an_agent_in_a_persons_session_is_ended_and_the_session_stays(bench: AgentBench) -> None:
    bench.tmux("new-session", "-d", "-s", "mine", "sh")
    words = [*ENTRY, "agents", "run", "gpu", "--", "sleep", "600"]
    environment = " ".join(f"{name}={value}" for name, value in bench.environment.items())
    bench.tmux("send-keys", "-t", "=mine:", f"env {environment} {shlex.join(words)}", "Enter")
    until(lambda: listed(bench) != [])
    done = json.loads(bench("agents", "stop", "gpu", "--json").out)
    assert (done["was_running"], done["tmux_session"]) == (True, "left")
    assert bench.tmux.sessions() == {"mine"}


def test_a_stranger_in_a_session_of_the_same_name_is_not_touched(bench: AgentBench) -> None:
    agent = bench.start_agent("gpu")
    bench.kill(agent, bench.tmux.pane_pid("HOLDFAST-gpu"))
    until(lambda: bench.tmux.sessions() == set())
    bench.tmux("new-session", "-d", "-s", "HOLDFAST-gpu", "sleep 600")
    stranger = bench.tmux.pane_pid("HOLDFAST-gpu")
    done = json.loads(bench("agents", "stop", "gpu", "--json").out)
    assert (done["was_running"], done["tmux_session"]) == (False, "none")
    assert bench.tmux.pane_pid("HOLDFAST-gpu") == stranger
    # The record that nobody removed is gone too.
    assert listed(bench) == [] and bench.own_folders() == []


def test_a_moved_session_is_not_trusted_and_nothing_is_ended(bench: AgentBench) -> None:
    agent = bench.start_agent("gpu")
    bench.tmux("rename-session", "-t", "=HOLDFAST-gpu", "elsewhere")
    bench.tmux("new-session", "-d", "-s", "HOLDFAST-gpu", "sleep 600")
    ran = bench("agents", "stop", "gpu")
    assert ran.status == 4 and "is not in tmux session HOLDFAST-gpu" in ran.err
    os.kill(holder_pid(agent), 0)
    assert bench.tmux.sessions() == {"elsewhere", "HOLDFAST-gpu"}


def test_processes_that_a_dead_agent_left_are_ended(bench: AgentBench) -> None:
    # It ignores the hangup of the pane that it is in.
    script = "trap '' HUP; sleep 600 & echo $!; exec sleep 600"
    agent = bench.start_agent("gpu", command=("sh", "-c", script))
    until(lambda: bench("agents", "logs", "gpu").out.strip().isdecimal())
    left = int(bench("agents", "logs", "gpu").out)
    os.kill(holder_pid(agent), signal.SIGKILL)
    until(lambda: "left" in bench("agents", "list").out)
    done = json.loads(bench("agents", "stop", "gpu", "--json").out)
    assert done["was_running"] is True
    ended(left)
    without_record(bench, agent)


def test_an_agent_that_outlives_its_tmux_server_is_stopped(bench: AgentBench) -> None:
    script = "trap '' HUP; echo ready; while :; do sleep 600; done"
    agent = bench.start_agent("gpu", command=("sh", "-c", script))
    until(lambda: "ready" in bench("agents", "logs", "gpu").out)
    os.kill(int(bench.tmux("display-message", "-p", "#{pid}")), signal.SIGKILL)
    until(lambda: bench.tmux.sessions() == set())
    os.kill(holder_pid(agent), 0)
    done = json.loads(bench("agents", "stop", "gpu", "--json").out)
    assert (done["was_running"], done["tmux_session"]) == (True, "none")
    bench.tree_ends(agent)
    assert listed(bench) == []


def test_an_agent_cannot_stop_itself(bench: AgentBench) -> None:
    stop = shlex.join([*ENTRY, "agents", "stop", "gpu"])
    ran = bench("agents", "run", "gpu", "--", "sh", "-c", f"{stop}; echo lives")
    assert ran.out == "lives\n" and "cannot stop itself" in ran.err


def test_stop_of_an_agent_that_never_was(bench: AgentBench) -> None:
    ran = bench("agents", "stop", "nobody")
    assert ran.status == 1 and "there is no agent nobody" in ran.err


# --- restart ---

SHELL = ("env", "PS1=> ", "bash", "--norc")
AT_ITS_PROMPT = ("--ready-regex", "^> ?$", "--quiet-ms", "100")
SAYING = ("sh", "-c", "pwd; echo $COLOUR; exec sleep 600")


def test_restart_repeats_command_folder_and_session_with_the_callers_environment(
    bench: AgentBench,
) -> None:
    work = bench.folder / "work"
    work.mkdir()
    bench.environment["COLOUR"] = "red"
    ran = bench(
        *("agents", "start", "gpu", "--tmux-session", "mine", "--settle", "3", "--json", "--"),
        *SAYING,
        cwd=work,
    )
    first = json.loads(ran.out)
    bench.environment["COLOUR"] = "blue"
    done = json.loads(bench("agents", "restart", "gpu", "--json").out)
    assert done["agent"]["generation_id"] != first["generation_id"]
    assert done["agent"]["holder"]["pid"] != first["holder"]["pid"]
    assert done["conversation"] is None
    assert bench.tmux.sessions() == {"mine"}
    until(lambda: bench("agents", "logs", "gpu").out == f"{work}\nblue\n")
    manifest = json.loads(Path(done["agent"]["runtime"]["manifest_path"]).read_bytes())
    assert manifest["working_directory"] == str(work)
    assert manifest["adapter"]["settle_s"] == 3


@pytest.mark.parametrize("killed", ["agent", "agent and runner", "tmux server"])
def test_restart_after_a_kill(bench: AgentBench, killed: str) -> None:
    agent = bench.start_agent("gpu", command=SAYING)
    if killed == "agent":
        os.kill(holder_pid(agent), signal.SIGKILL)
        without_record(bench, agent)
    elif killed == "agent and runner":
        bench.kill(agent, bench.tmux.pane_pid("HOLDFAST-gpu"))
    else:
        server = int(bench.tmux("display-message", "-p", "#{pid}"))
        os.kill(server, signal.SIGKILL)
        bench.tree_ends(agent)
    done = json.loads(bench("agents", "restart", "gpu", "--json").out)
    assert done["agent"]["agent_id"] == agent.agent_id
    assert done["agent"]["generation_id"] != agent.generation_id
    assert bench.tmux.sessions() == {"HOLDFAST-gpu"}


def test_what_cannot_be_repeated_is_refused_before_anything_is_stopped(bench: AgentBench) -> None:
    work = bench.folder / "work"
    work.mkdir()
    agent = json.loads(
        bench("agents", "start", "gpu", "--json", "--", "sleep", "600", cwd=work).out
    )
    work.rmdir()
    ran = bench("agents", "restart", "gpu")
    assert ran.status == 2 and "is gone" in ran.err
    ran = bench("agents", "restart", "gpu", "--conversation", "x")
    assert ran.status == 2
    os.kill(agent["holder"]["pid"], 0)


def test_an_agent_that_something_else_started_is_not_restarted(bench: AgentBench) -> None:
    manifest = bench.folder / "manifest.json"
    said = ["--backend", "claude_headless", "--tool", "claude", "--tmux-session", "s-1"]
    bench("agents", "publish", "gpu", "--manifest", str(manifest), *said)
    ran = bench("agents", "restart", "gpu")
    assert ran.status == 1 and "nothing is known here" in ran.err
    assert len(listed(bench)) == 1


def test_a_restart_that_dies_at_once_says_so(bench: AgentBench) -> None:
    flag = bench.folder / "flag"
    flag.touch()
    script = f"test -e {flag} || exit 9; exec sleep 600"
    bench.start_agent("gpu", command=("sh", "-c", script))
    flag.unlink()
    ran = bench("agents", "restart", "gpu", "--watch", str(PATIENCE_S))
    assert ran.status == 1 and "exit status 9" in ran.err
    assert listed(bench) == []


# --- attach, join and send ---


def test_attach_shows_the_agent_and_leaves_it_running(bench: AgentBench) -> None:
    agent = bench.start_agent("gpu", command=("sh", "-c", "echo I am here; exec sleep 600"))
    bench.environment["TERM"] = "xterm"
    bench.tmux("new-session", "-d", "-s", "desk", "sh")
    words = shlex.join([*ENTRY, "agents", "attach", "gpu"])
    around = " ".join(f"{name}={value}" for name, value in bench.environment.items())
    # Another tmux server, in whose pane a person attaches.
    other = bench.folder / "other.socket"
    subprocess.run(["tmux", "-S", str(other), "-f", "/dev/null", "new-session", "-d"], check=True)
    try:
        keys = ["send-keys", f"env {around} {words}", "Enter"]
        subprocess.run(["tmux", "-S", str(other), *keys], check=True)
        until(lambda: bench.tmux("list-clients", "-F", "#{session_name}") == "HOLDFAST-gpu\n")
    finally:
        subprocess.run(["tmux", "-S", str(other), "kill-server"], check=True)
    until(lambda: bench.tmux("list-clients") == "")
    os.kill(holder_pid(agent), 0)


def test_attach_inside_of_tmux_switches_to_the_agent(bench: AgentBench) -> None:
    bench.start_agent("gpu")
    bench.tmux("new-session", "-d", "-s", "desk", "sh")
    words = shlex.join([*ENTRY, "agents", "attach", "gpu"])
    around = " ".join(f"{name}={value}" for name, value in bench.environment.items())
    bench.tmux("send-keys", "-t", "=desk:", f"env {around} {words}; echo status $?", "Enter")
    # Nobody looks at that tmux, so there is no client to switch: tmux itself says so.
    until(lambda: "status 1" in bench.tmux.screen("desk"))
    assert "no current client" in bench.tmux.screen("desk")


def test_attach_needs_a_terminal_and_a_live_agent(bench: AgentBench) -> None:
    bench.start_agent("gpu")
    ran = bench("agents", "attach", "gpu")
    assert ran.status == 2 and "needs a terminal" in ran.err
    bench("agents", "stop", "gpu")
    ran = bench("agents", "attach", "gpu")
    assert ran.status == 1 and "has ended with exit status 143" in ran.err


def test_join_makes_an_agent_of_what_runs_in_a_session(bench: AgentBench) -> None:
    bench.tmux("new-session", "-d", "-s", "work", "-c", str(bench.folder), "sleep 601")
    ran = bench("agents", "join", "work", "--json")
    assert ran.status == 0, ran.err
    agent = json.loads(ran.out)
    assert agent["agent_name"] == "HOLDFAST-work"
    assert agent["holder"]["pid"] == bench.tmux.pane_pid("work")
    assert bench.hf.agents.control_target("work").manifest.working_directory == str(bench.folder)
    # The session is one agent's.
    ran = bench("agents", "join", "work", "other")
    assert ran.status == 4 and "published in tmux session work already" in ran.err
    done = json.loads(bench("agents", "stop", "work", "--json").out)
    assert (done["was_running"], done["exited"]["exit_status"]) == (True, None)
    assert listed(bench) == []


def test_a_joined_agent_is_started_again_in_a_session_of_its_own(bench: AgentBench) -> None:
    bench.tmux("new-session", "-d", "-s", "work", "sh")
    bench.tmux("send-keys", "-t", "=work:", "sleep 601", "Enter")
    until(
        lambda: bench.tmux("display", "-p", "-t", "=work:", "#{pane_current_command}") == "sleep\n"
    )
    assert bench("agents", "join", "work", "gpu").status == 0
    done = json.loads(bench("agents", "restart", "gpu", "--json").out)
    assert done["agent"]["terminal"]["session_name"] == "HOLDFAST-gpu"
    # The person's session has its shell still.
    assert bench.tmux.sessions() == {"work", "HOLDFAST-gpu"}


def test_a_shell_is_joined_only_when_that_is_said(bench: AgentBench) -> None:
    bench.tmux("new-session", "-d", "-s", "work", "bash --norc")
    ran = bench("agents", "join", "work")
    assert ran.status == 2 and "only a shell" in ran.err
    assert listed(bench) == []
    assert bench("agents", "join", "work", "--tool", "shell").status == 0


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["nosuch"], 1, "no tmux session nosuch"),
        (["work", "--tool", "nosuch"], 1, "no profile 'nosuch'"),
        (["work", "no name"], 2, "no name"),
        (["a b"], 2, "give a NAME"),
    ],
)
def test_a_join_that_cannot_be(bench: AgentBench, words: list[str], status: int, said: str) -> None:
    bench.tmux("new-session", "-d", "-s", "work", "sleep 601")
    ran = bench("agents", "join", *words)
    assert ran.status == status and said in ran.err
    assert ran.err.count("\n") == 1
    assert listed(bench) == [] and bench.own_folders() == []


def test_send_is_a_prompt_to_the_agents_gateway(bench: AgentBench) -> None:
    ran = bench("agents", "send", "nobody", "hello")
    assert ran.status == bench("gateway", "prompt", "nobody", "hello").status != 0
    bench.start_agent("gpu", command=SHELL)
    served = bench.start("gateway", "serve", "gpu", *AT_ITS_PROMPT)
    try:
        assert line(served).startswith("gateway of gpu")
        ran = bench("agents", "send", "gpu", "echo sum-$((40+2))", "--wait")
    finally:
        served.kill()
        served.communicate()
    assert ran.status == 0 and "sum-42" in ran.out


def test_a_shell_takes_prompts_without_a_pattern_of_its_own(bench: AgentBench) -> None:
    """tmux leaves out the space at the end of a shell's prompt."""
    bench.start_agent("gpu", command=("bash", "--norc"))
    served = bench.start("gateway", "serve", "gpu")
    try:
        assert line(served).startswith("gateway of gpu")
        status = bench.hf.gateway("gpu").status
        until(lambda: status()["agent_state"] == "ready", saw=lambda: str(status()))
        for number in (40, 50):
            made = bench.folder / f"made-{number}"
            ran = bench("agents", "send", "gpu", f"touch {made}", "--wait")
            assert ran.status == 0, ran.err
            until(made.exists)
    finally:
        served.kill()
        served.communicate()


def test_a_start_with_a_gateway_returns_when_it_takes_prompts(
    bench: AgentBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in bench.environment.items():
        monkeypatch.setenv(name, value)
    agent = bench.start_agent("gpu", "--gateway", *AT_ITS_PROMPT, command=SHELL)
    host = host_of(bench.hf)
    assert host is not None and agent.gateway is not None
    try:
        for number in (40, 50):
            ran = bench("agents", "send", "gpu", f"echo sum-$(({number}+2))", "--wait")
            assert ran.status == 0 and f"sum-{number + 2}" in ran.out
            # The host finds the next generation by itself.
            assert bench("agents", "restart", "gpu").status == 0
            until(lambda: bench("gateway", "status", "gpu").status == 0)
    finally:
        os.kill(host.process.pid, signal.SIGKILL)
        ended(host.process.pid)
