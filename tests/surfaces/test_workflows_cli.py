"""`holdfast workflows` and `holdfast swap` as a user runs them, with real processes."""

import json
import os
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.kernel.holder import Liveness, probe
from holdfast.runtime.connection import Holdfast, connect
from tests.harness.processes import used_by, used_since
from tests.harness.timeouts import PATIENCE_S
from tests.surfaces.command import ENTRY, CommandLine
from tests.surfaces.locking import HOLDING, Process, end, line, output_of, remark, trapping

pytestmark = pytest.mark.prove


class Bench(CommandLine):
    """`holdfast` on a store of its own, and a look into that store."""

    def __init__(self, folder: Path, hf: Holdfast, url: str) -> None:
        super().__init__(folder, HOLDFAST_STORE=url)
        self.hf = hf
        self.started: list[Process] = []

    def begin(self, *words: str) -> Process:
        """Start `holdfast WORDS`; its input is ours to end."""
        process = self.start(*words, stdin=subprocess.PIPE)
        self.started.append(process)
        return process

    def run(self, name: str, recipe: str, *more: str) -> tuple[Process, int]:
        """Start a workflow that lives until its input ends; return it and its command's process
        id.
        """
        process = self.begin(
            "workflows", "run", name, "--recipe", recipe, "-q", *more, "--", *HOLDING
        )
        return process, int(line(process))

    def names(self) -> list[str]:
        return [workflow.name for workflow in self.hf.workflows.list_workflows()]

    def current(self) -> str | None:
        current = self.hf.workflows.swap_status().current
        return None if current is None else current.recipe

    def events(self) -> list[str]:
        return [event.event for event in self.hf.workflows.swap_log()]

    def load_ended(self) -> None:
        """Wait until no process is left of the load of a killed swap."""
        marker = self.hf.workflows.snapshot().marker
        assert marker is not None
        while probe(marker.holder, self.hf.processes, embedded=True) is not Liveness.DEAD:
            fd = self.hf.processes.death(marker.holder)
            if fd is not None:
                select.select([fd], [], [], PATIENCE_S)
                os.close(fd)


SHARED = pytest.mark.parametrize("bench", ["sqlite", "files"], indirect=True)
"""For what processes do to each other, which rests on locks and notices that each of these stores
has its own way of.
"""


@pytest.fixture
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    in_files = getattr(request, "param", "sqlite") == "files"
    url = f"files:{tmp_path}/state" if in_files else f"sqlite:{tmp_path}/state/store.sqlite"
    with connect(url) as hf:
        made = Bench(tmp_path, hf, url)
        try:
            yield made
        finally:
            for process in made.started:
                process.kill()
                process.communicate()


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A process for work to belong to."""
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    yield process.pid
    process.kill()
    process.communicate()


# --- register, renew, release, list, sweep ---


def test_register_renew_release(bench: Bench, sleeper: int) -> None:
    done = bench("workflows", "register", "nightly", "--recipe", "llama", "--pid", str(sleeper))
    assert (
        done.status == 0
        and done.err
        == "holdfast: llama is not loaded: `holdfast swap to llama -- COMMAND` loads it\n"
    )
    token = done.out.strip()
    (row,) = [text.split("\t") for text in bench("workflows", "list").out.splitlines()]
    assert row[:5] == ["nightly", "llama", "runs", "no", str(sleeper)] and row[6] == token
    assert bench("workflows", "renew", "nightly", "--token", token, "--ttl", "3600").out.startswith(
        "nightly ends at "
    )
    assert bench("workflows", "release", "nightly", "--token", "7").status == 4
    assert bench("workflows", "release", "nightly", "--token", token).out == "nightly is released\n"
    gone = bench("workflows", "release", "nightly", "--token", token)
    assert gone.status == 1 and "there is no workflow nightly" in gone.err
    lost = bench("workflows", "renew", "nightly", "--token", token)
    assert lost.status == 4 and "not registered any more" in lost.err


def test_registering_needs_a_process_that_lives(bench: Bench, sleeper: int) -> None:
    assert bench("workflows", "register", "a", "--recipe", "r").status == 2
    assert bench("workflows", "register", "a", "--recipe", "r", "--pid", "4194304").status == 1
    as_json = json.loads(
        bench("workflows", "register", "a", "--recipe", "r", "--pid", str(sleeper), "--json").out
    )
    assert as_json["swap_needed"] is True and as_json["owner"]["pid"] == sleeper
    refused = bench("workflows", "register", "a", "--recipe", "r", "--pid", str(os.getpid()))
    assert refused.status == 4 and f"process {sleeper}" in refused.err
    assert (
        bench("workflows", "register", "../a", "--recipe", "r", "--pid", str(sleeper)).status == 2
    )


def test_the_dead_are_swept(bench: Bench) -> None:
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    bench("workflows", "register", "a", "--recipe", "r", "--pid", str(process.pid))
    process.kill()
    process.communicate()
    assert bench("workflows", "sweep").out == "a\n"
    assert bench("workflows", "sweep", "--json").out == "[]\n"


def test_looking_makes_no_store(tmp_path: Path) -> None:
    command = CommandLine(tmp_path)
    for words in (
        ("workflows", "list"),
        ("workflows", "sweep"),
        ("swap", "status"),
        ("swap", "reconcile"),
        ("swap", "log"),
    ):
        assert command(*words).status == 0
    assert not (tmp_path / ".local").exists()


# --- run ---


def test_run_is_a_workflow_for_as_long_as_its_command_runs(bench: Bench) -> None:
    process, pid = bench.run("train", "llama")
    (workflow,) = bench.hf.workflows.list_workflows()
    assert (workflow.name, workflow.recipe, workflow.owner.pid, workflow.owner.label) == (
        "train",
        "llama",
        pid,
        "sh",
    )
    assert end(process)[0] == 0
    assert bench.names() == []
    assert [e.kind for e in bench.hf.log.tail(10)[0]] == [
        "workflow.registered",
        "workflow.released",
    ]


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -9 $$"], 137),
        (["no-such-command"], 127),
        (["/"], 126),
    ],
)
def test_run_exits_as_its_command_does(bench: Bench, words: list[str], status: int) -> None:
    done = bench("workflows", "run", "a", "--recipe", "r", "--", *words)
    assert done.status == status
    assert bench.names() == []
    assert ("no workflow was registered" in done.err) == (status in (126, 127))


def test_run_without_a_command_is_a_mistake(bench: Bench) -> None:
    assert bench("workflows", "run", "a", "--recipe", "r").status == 2
    assert bench("swap", "to", "r").status == 2


def test_the_command_finds_its_name_token_and_signal_file(bench: Bench) -> None:
    script = "echo $HOLDFAST_WORKFLOW $HOLDFAST_WORKFLOW_TOKEN $HOLDFAST_PREEMPT_FILE"
    name, token, path = bench(
        "workflows", "run", "a", "--recipe", "r", "--preemptible", "--", "sh", "-c", script
    ).out.split()
    assert name == "a" and path.endswith(f"/a-{token}.preempt")
    assert (
        bench("workflows", "run", "a", "--recipe", "r", "--", "sh", "-c", script).out.count(
            "preempt"
        )
        == 0
    )
    own = str(bench.folder / "my-signal")
    words = (
        "workflows",
        "run",
        "a",
        "--recipe",
        "r",
        "--preemptible",
        "--signal-path",
        own,
        "--",
        "sh",
        "-c",
        script,
    )
    assert bench(*words).out.split()[2] == own


def test_signals_are_passed_on(bench: Bench) -> None:
    process = bench.begin(
        "workflows", "run", "a", "--recipe", "r", "-q", "--", *trapping("SIGTERM")
    )
    assert line(process) == "up"
    process.send_signal(signal.SIGTERM)
    assert line(process) == "got"
    assert end(process)[0] == 42
    assert bench.names() == []


@SHARED
def test_a_killed_run_leaves_its_command_registered_until_it_ends(bench: Bench) -> None:
    process, pid = bench.run("a", "r")
    process.kill()
    process.wait(PATIENCE_S)
    assert bench.names() == ["a"]
    os.kill(pid, signal.SIGKILL)
    # Its parent is gone, so init reaps it soon; either way it is dead.
    bench.hf.workflows.swap("other", timeout_s=PATIENCE_S).__enter__().fail("only looked")
    assert bench.names() == []


@SHARED
def test_run_is_refused_under_a_swap_to_another_recipe_and_waits_on_request(bench: Bench) -> None:
    with bench.hf.workflows.swap("llama"):
        refused = bench("workflows", "run", "a", "--recipe", "qwen", "--", "true")
        assert refused.status == 4 and "a swap to llama by process" in refused.err
        # Its own recipe is not loaded yet either.
        assert bench("workflows", "run", "b", "--recipe", "llama", "--", "true").status == 4
        waits = bench.begin(
            "workflows", "run", "a", "--recipe", "qwen", "-w", "60", "--", "echo", "ran"
        )
        assert remark(waits).startswith("holdfast: waiting for a swap to llama by process")
        same = bench.begin(
            "workflows", "run", "b", "--recipe", "llama", "-w", "60", "--", "echo", "ran"
        )
        assert remark(same).startswith("holdfast: waiting for a swap to llama by process")
    assert end(same)[:2] == (0, "ran\n")
    assert remark(waits).startswith(
        "holdfast: waiting for its recipe to be loaded: llama is, by the swap of process"
    )
    assert bench("swap", "to", "qwen", "--", "true").status == 0
    assert end(waits)[:2] == (0, "ran\n")


@SHARED
def test_run_is_refused_on_another_recipe_than_its_own(bench: Bench) -> None:
    """It ran on whatever was loaded, with exit status 0 and a warning."""
    ran = bench.folder / "ran"
    command = ("--", "touch", str(ran))
    first = bench("workflows", "run", "x", "--recipe", "B", "--", "true")
    assert first.status == 0 and "B is not loaded" in first.err, "nothing was ever loaded"
    assert bench("swap", "to", "A", "--", "true").status == 0
    refused = bench("workflows", "run", "x", "--recipe", "B", *command)
    assert (refused.status, refused.out, ran.exists()) == (4, "", False)
    assert (
        "A is, by the swap of process" in refused.err
        and "`holdfast swap to B -- COMMAND`" in refused.err
    )
    late = bench("workflows", "run", "x", "--recipe", "B", "-w", "0.05", "-q", *command)
    assert (late.status, ran.exists()) == (4, False)
    assert [e.kind for e in bench.hf.log.tail(10)[0]].count("workflow.registered") == 1
    assert bench("workflows", "run", "x", "--recipe", "B", "--any-recipe", *command).status == 0
    assert ran.exists()


def test_register_refuses_another_recipe_on_request(bench: Bench, sleeper: int) -> None:
    assert bench("swap", "to", "A", "--", "true").status == 0
    words = ("workflows", "register", "x", "--recipe", "B", "--pid", str(sleeper))
    refused = bench(*words, "--loaded-only")
    assert (refused.status, refused.out, bench.names()) == (4, "", [])
    assert json.loads(bench(*words, "--json").out)["swap_needed"] is True


def test_a_signal_while_run_waits_ends_it_in_order(bench: Bench) -> None:
    with bench.hf.workflows.swap("llama"):
        waits = bench.begin(
            "workflows", "run", "a", "--recipe", "qwen", "-w", "30", "--", "echo", "ran"
        )
        remark(waits)
        waits.send_signal(signal.SIGTERM)
        assert end(waits)[:2] == (128 + signal.SIGTERM, "")
    assert bench.names() == []


# --- yielding ---


@SHARED
def test_a_preemptible_command_yields_to_the_signal_file(bench: Bench) -> None:
    # Polls for the file as a simple program would: it checks where stopping is safe.
    script = 'echo up; read x; test -e "$HOLDFAST_PREEMPT_FILE" && echo yields'
    process = bench.begin(
        "workflows",
        "run",
        "tune",
        "--recipe",
        "qwen",
        "-q",
        "--preemptible",
        "--",
        "sh",
        "-c",
        script,
    )
    assert line(process) == "up"
    swap = bench.begin("swap", "to", "llama", "--", "echo", "loaded")
    assert (
        "workflow tune (qwen, sh (process " in (output := remark(swap))
        and "was asked to yield" in output
    )
    assert process.stdin is not None
    process.stdin.write("checkpoint\n")
    process.stdin.flush()
    assert line(process) == "yields"
    assert end(process)[0] == 0
    assert end(swap)[:2] == (0, "loaded\n")
    assert bench.current() == "llama"
    assert bench.events() == [
        "swap_started",
        "preempt_requested",
        "preempt_yielded",
        "swap_completed",
    ]


@pytest.mark.parametrize("name", ["USR1", "USR2"])
def test_a_command_with_a_handler_is_sent_a_signal_too(bench: Bench, name: str) -> None:
    words = (
        "workflows",
        "run",
        "tune",
        "--recipe",
        "qwen",
        "-q",
        "--preemptible",
        "--signal",
        name,
    )
    process = bench.begin(*words, "--", *trapping(f"SIG{name}"))
    assert line(process) == "up"
    swap = bench.begin("swap", "to", "llama", "--", "true")
    assert line(process) == "got"
    assert end(process)[0] == 42
    assert end(swap)[0] == 0


@pytest.mark.parametrize("more", [[], ["--signal", "none"]])
def test_a_command_without_a_handler_is_not_killed_by_the_signal(
    bench: Bench, more: list[str]
) -> None:
    process, _ = bench.run("tune", "qwen", "--preemptible", *more)
    done = bench("swap", "to", "llama", "--grace", "0", "--policy", "refuse", "--", "true")
    assert (
        done.status == 4
        and "workflow tune (qwen, sh (process" in done.err
        and "has not yielded" in done.err
    )
    assert bench.names() == ["tune"]
    assert end(process)[0] == 0
    assert bench.events() == [
        "swap_started",
        "preempt_requested",
        "preempt_ignored",
        "swap_refused",
    ]


# --- swap ---


def test_a_swap_runs_its_command_and_changes_the_recipe(bench: Bench) -> None:
    done = bench(
        "swap", "to", "llama", "--", "sh", "-c", "echo $HOLDFAST_SWAP_RECIPE $HOLDFAST_SWAP_TOKEN"
    )
    token = bench.hf.workflows.swap_log()[-1].data["token"]
    assert (done.status, done.out, done.err) == (0, f"llama {token}\n", "")
    assert "current  llama, loaded" in bench("swap", "status").out
    assert json.loads(bench("swap", "status", "--json").out)["current"]["recipe"] == "llama"
    lines = bench("swap", "log").out.splitlines()
    assert [text.split()[2] for text in lines] == ["swap_started", "swap_completed"]
    (last,) = bench("swap", "log", "-n", "1", "--json").out.splitlines()
    assert json.loads(last)["event"] == "swap_completed"


@pytest.mark.parametrize(
    ("command", "status"),
    [("no-such-command", 127), ("./laod.sh", 127), ("/", 126), ("loads", 126), ("", 127)],
)
def test_nobody_is_asked_to_yield_for_a_command_that_cannot_be_run(
    bench: Bench, tmp_path: Path, command: str, status: int
) -> None:
    (tmp_path / "loads").write_text("echo loaded\n")
    process, _ = bench.run("tune", "llama", "--preemptible")
    done = bench(
        "swap", "to", "qwen", "--", str(tmp_path / command) if command == "loads" else command
    )
    assert (done.status, done.out) == (status, "")
    assert "no swap was begun" in done.err
    assert (bench.events(), bench.names()) == ([], ["tune"])
    end(process)


@SHARED
@pytest.mark.parametrize(
    ("words", "status"), [(["sh", "-c", "exit 9"], 9), (["sh", "-c", "kill -9 $$"], 137)]
)
def test_after_a_failed_load_it_is_unknown_what_is_loaded(
    bench: Bench, words: list[str], status: int
) -> None:
    """The old recipe was still called current, and work for it ran."""
    assert bench("swap", "to", "llama", "--", "true").status == 0
    done = bench("swap", "to", "qwen", "--", *words)
    assert done.status == status
    assert f"qwen was not loaded: the command's exit status was {status}" in done.err
    assert bench("swap", "status").out.startswith("current  unknown: the load of qwen by process")
    shown = json.loads(bench("swap", "status", "--json").out)
    assert shown["current"] is None and shown["unknown"]["ended_at"] is not None
    assert (
        shown["unknown"]["recipe"],
        shown["unknown"]["exit_status"],
        shown["unknown"]["before"],
    ) == (
        "qwen",
        status,
        "llama",
    )
    for recipe in ("llama", "qwen"):
        refused = bench("workflows", "run", "x", "--recipe", recipe, "--", "echo", "ran")
        assert (refused.status, refused.out) == (
            4,
            "",
        ) and "the load of qwen by process" in refused.err
    assert (
        bench.hf.workflows.swap_log()[-1].data["why"] == f"the command's exit status was {status}"
    )
    path = bench.folder / "state" / "workflows.json"
    if path.exists():
        document = json.loads(path.read_text())
        assert document["current_recipe"] is None and document["unknown_recipe"]["recipe"] == "qwen"
    assert bench("swap", "to", "llama", "--", "true").status == 0
    assert bench("workflows", "run", "x", "--recipe", "llama", "--", "echo", "ran").out == "ran\n"


@SHARED
def test_a_swapper_killed_in_mid_load_leaves_it_unknown_what_is_loaded(bench: Bench) -> None:
    assert bench("swap", "to", "llama", "--", "true").status == 0
    process, _ = bench.run("train", "llama")
    waits = bench.begin("swap", "to", "qwen", "--", *trapping("SIGTERM"))
    remark(waits)
    waits.kill()
    waits.wait(PATIENCE_S)
    # It had not started to load.
    assert bench.current() == "llama"
    end(process)
    loads = bench.begin("swap", "to", "qwen", "--", *trapping("SIGTERM"))
    assert line(loads) == "up"
    loads.kill()
    assert line(loads) == "got"
    bench.load_ended()
    shown = json.loads(bench("swap", "status", "--json").out)
    assert (shown["current"], shown["swap"], shown["unknown"]["recipe"]) == (None, None, "qwen")
    assert bench("workflows", "run", "x", "--recipe", "llama", "--", "true").status == 4
    log = [json.loads(text) for text in bench("swap", "log", "--json").out.splitlines()]
    orphans = [
        event["data"].get("unknown") for event in log if event["event"] == "orphan_marker_cleared"
    ]
    assert orphans == [None, True]


@pytest.mark.parametrize("how", ["the interpreter is missing", "a signal"])
def test_a_command_that_never_ran_has_loaded_nothing(bench: Bench, how: str) -> None:
    assert bench("swap", "to", "llama", "--", "true").status == 0
    if how == "a signal":
        process, _ = bench.run("train", "llama")
        waits = bench.begin("swap", "to", "qwen", "--", "true")
        remark(waits)
        waits.send_signal(signal.SIGTERM)
        assert end(waits)[0] == 128 + signal.SIGTERM
        end(process)
    else:
        script = bench.folder / "load.sh"
        script.write_text("#!/no/such/interpreter\n")
        script.chmod(0o755)
        done = bench("swap", "to", "qwen", "--", str(script))
        assert done.status == 127 and "nothing was loaded" in done.err
    status = bench.hf.workflows.swap_status()
    assert bench.current() == "llama" and status.unknown is None and status.marker is None


@SHARED
def test_a_recipe_that_is_loaded_is_not_loaded_again(bench: Bench) -> None:
    loads = bench.folder / "loads"
    load = ("--", "sh", "-c", f"echo $HOLDFAST_SWAP_RECIPE >> {loads}")
    assert bench("swap", "to", "C", *load).status == 0
    again = bench("swap", "to", "C", *load)
    assert (again.status, again.out) == (0, "")
    assert again.err == "holdfast: C is loaded already: nothing was done. --reload loads it again\n"
    assert loads.read_text() == "C\n"
    (last,) = bench("swap", "log", "-n", "1", "--json").out.splitlines()
    assert json.loads(last)["event"] == "swap_not_needed"
    process, _ = bench.run("train", "C")
    assert bench("swap", "to", "C", "--reload", "--policy", "refuse", *load).status == 4
    assert loads.read_text() == "C\n", "work runs on it"
    end(process)
    assert bench("swap", "to", "C", "--reload", *load).status == 0
    assert loads.read_text() == "C\nC\n"


@SHARED
@pytest.mark.parametrize("how", ["as its own process", "as a child of its command"])
def test_two_workflows_that_each_swap_to_their_own_recipe_do_not_wait_for_each_other(
    bench: Bench, how: str
) -> None:
    """Each waited for the other until the timeout, which is 300 s."""

    def begin(name: str, recipe: str) -> Process:
        swap = f"{shlex.join(ENTRY)} swap to {recipe} -- echo loaded {recipe}"
        become = "exec " if how == "as its own process" else ""
        # With a command behind it, so that the shell stays.
        script = f"echo up; read go; {become}{swap}; exit $?"
        process = bench.begin(
            "workflows", "run", name, "--recipe", recipe, "-q", "--", "sh", "-c", script
        )
        assert line(process) == "up"
        return process

    def go(process: Process) -> None:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()

    first, second = begin("one", "A"), begin("two", "B")
    go(first)
    assert remark(first).startswith("holdfast: waiting: workflow two (B, sh (process ")
    go(second)
    status, out, err = end(second)
    assert (status, out) == (4, "")
    assert (
        "the swap to B would wait for the swap to A by process" in err
        and "which waits for workflow two (B, sh" in err
    )
    assert end(first)[:2] == (0, "loaded A\n")
    assert bench.current() == "A"


def test_a_swap_does_not_wait_for_the_workflow_in_which_it_runs(bench: Bench) -> None:
    words = (*ENTRY, "swap", "to", "B", "--", "echo", "loaded")
    done = bench(
        "workflows",
        "run",
        "one",
        "--recipe",
        "A",
        "-q",
        "--",
        "sh",
        "-c",
        f"{shlex.join(words)}; exit $?",
    )
    assert (done.status, done.out) == (
        4,
        "",
    ) and "the swap to B would wait for workflow one (A, sh" in done.err


@SHARED
def test_a_swap_waits_for_work_or_refuses_or_gives_up(bench: Bench) -> None:
    process, pid = bench.run("train", "qwen")
    refused = bench("swap", "to", "llama", "--policy", "refuse", "--", "echo", "no")
    assert (refused.status, refused.out) == (4, "")
    assert f"workflow train (qwen, sh (process {pid})) is not preemptible" in refused.err
    late = bench("swap", "to", "llama", "--timeout", "0.05", "-q", "--", "echo", "no")
    assert (late.status, late.out) == (5, "") and "no swap to llama within 0.05 s" in late.err
    waits = bench.begin("swap", "to", "llama", "--", "echo", "loaded")
    assert (
        remark(waits)
        == f"holdfast: waiting: workflow train (qwen, sh (process {pid})) is not preemptible"
    )
    assert (
        "The swap waits for it: it cannot be asked to yield: wait for its end, or end sh "
        f"(process {pid}) yourself" in (bench("swap", "status").out)
    )
    assert end(process)[0] == 0
    assert end(waits)[:2] == (0, "loaded\n")


@SHARED
def test_two_swaps_take_turns(bench: Bench) -> None:
    first = bench.begin("swap", "to", "a", "--", *HOLDING)
    line(first)
    second = bench.begin("swap", "to", "b", "--", "echo", "b")
    assert remark(second).startswith("holdfast: waiting for a swap to a by process")
    assert bench("swap", "to", "c", "--timeout", "0", "--", "true").status == 5
    assert end(first)[0] == 0
    assert end(second)[:2] == (0, "b\n")
    assert bench.current() == "b"


def test_a_signal_while_a_swap_waits_ends_it_in_order(bench: Bench) -> None:
    process, _ = bench.run("train", "qwen")
    waits = bench.begin("swap", "to", "llama", "--", "echo", "no")
    remark(waits)
    waits.send_signal(signal.SIGINT)
    assert end(waits)[:2] == (128 + signal.SIGINT, "")
    assert bench.events() == ["swap_started", "swap_refused"]
    end(process)


@SHARED
def test_a_killed_swapper_ends_its_command_and_blocks_nobody(bench: Bench) -> None:
    swap = bench.begin("swap", "to", "llama", "--", *trapping("SIGTERM"))
    assert line(swap) == "up"
    assert "a swap to llama by process" in bench("swap", "reconcile").out
    swap.kill()
    # The command is sent SIGTERM by its guardian.
    assert line(swap) == "got"
    bench.load_ended()
    assert bench("swap", "reconcile").out.startswith(
        "cleared what was left of a swap to llama by process"
    )
    assert bench("swap", "reconcile").out == "no swap is under way\n"
    assert bench("swap", "to", "qwen", "--", "true").status == 0
    assert bench.events() == [
        "swap_started",
        "orphan_marker_cleared",
        "swap_started",
        "swap_completed",
    ]


def test_waiting_uses_no_cpu(bench: Bench) -> None:
    process, _ = bench.run("train", "qwen")
    waits = bench.begin("swap", "to", "llama", "--", "echo", "loaded")
    remark(waits)
    second = bench.begin(
        "workflows", "run", "b", "--recipe", "qwen", "-w", "60", "--any-recipe", "--", "true"
    )
    remark(second)
    before = [used_by(one.pid) for one in (waits, second)]
    assert output_of(waits, second, within_s=3) == []
    assert all(
        used_since(began, one.pid).is_rest(3)
        for one, began in zip((waits, second), before, strict=True)
    )
    assert end(process)[0] == 0
    assert end(waits)[:2] == (0, "loaded\n")
    assert end(second)[0] == 0


def test_what_a_table_shows_on_a_terminal(bench: Bench, sleeper: int) -> None:
    assert "No workflows. Try: holdfast workflows run" in bench.on_a_terminal("workflows", "list")
    bench("workflows", "register", "nightly", "--recipe", "llama", "--pid", str(sleeper))
    shown = bench.on_a_terminal("workflows", "list", columns=110)
    assert "workflow" in shown and "nightly" in shown and str(sleeper) in shown


def test_a_registration_whose_token_cannot_be_written_is_taken_back(
    bench: Bench, sleeper: int
) -> None:
    script = (
        f"exec >/dev/full; '{sys.executable}' -m holdfast.surfaces.cli.entry workflows register a "
        f"--recipe r --pid {sleeper}"
    )
    done = bench.shell(script)
    assert done.status == 6 and "was released again" in done.err
    assert bench.names() == []
    # One that was there before stays: a swap must not load under its work.
    bench("workflows", "register", "a", "--recipe", "r", "--pid", str(sleeper))
    assert bench.shell(script).status == 6
    assert bench.names() == ["a"]


def test_an_empty_recipe_is_named_as_what_is_wrong(bench: Bench) -> None:
    """As of a variable that is not set."""
    process = bench.begin("swap", "to", "", "--", "true")
    assert "cannot be a recipe" in remark(process)
    assert process.wait(PATIENCE_S) == 2
