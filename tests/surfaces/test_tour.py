"""The tour: every statement is true, a false one is named, and nothing is left behind."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.kernel.errors import StoreUnavailable
from holdfast.primitives.locks import Locks
from holdfast.stores.sqlite.fifos import Fifos
from holdfast.surfaces.cli import root, tour
from holdfast.surfaces.cli.tour import gateway, locks
from holdfast.surfaces.cli.tour.steps import Tour, filled
from tests.harness.timeouts import PATIENCE_S, until
from tests.harness.tmux_server import tmux_server

_RUN = """
import sys
from holdfast.surfaces.cli import root, tour
tour.CHAPTERS = [chapter for chapter in tour.CHAPTERS if sys.argv[1] in chapter.title]
sys.exit(root.run(["tour"]))
"""


def played(folder: Path, part: str = "", **environment: str) -> "subprocess.CompletedProcess[str]":
    """Play the tour, or the chapters with a word in their title, as a user would."""
    temporary = folder / "tmp"
    temporary.mkdir(parents=True)
    around = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "TMPDIR": str(temporary),
        **environment,
    }
    if "PYTHONPATH" in os.environ:
        around["PYTHONPATH"] = os.environ["PYTHONPATH"]
    command = [sys.executable, "-c", _RUN, part]
    done = subprocess.run(
        command,
        cwd=folder,
        env=around,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=False,
    )
    assert list(temporary.iterdir()) == [], "the tour left something behind"
    assert str(temporary) not in _running(), "the tour left somebody behind"
    return done


def _running() -> str:
    lines = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            lines.append((path / "cmdline").read_bytes() + (path / "environ").read_bytes())
        except OSError:
            continue
    return b"\n".join(lines).decode(errors="replace")


@pytest.fixture
def short(tmp_path: Path) -> Iterator[Path]:
    """A folder with a name that is short enough for a socket in it."""
    folder = Path(f"/tmp/hft-{os.getpid()}-{abs(hash(str(tmp_path))) % 10000}")
    folder.mkdir()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.prove
def test_the_tour_holds(short: Path) -> None:
    # What is around it must not lead it elsewhere.
    (short / "holdfast.toml").write_text("this is no TOML")
    ran = played(short, HOLDFAST_NAMESPACE="elsewhere", MQTT_BROKER="nowhere")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "✗" not in ran.stdout and ran.stderr == ""
    output = re.search(r"All (\d+) statements are true", ran.stdout)
    assert output is not None and int(output[1]) == ran.stdout.count("✓ ") >= 40
    for part in (
        "Agents",
        "Network",
        "Locks",
        "Jobs",
        "worker is killed",
        "Gateways",
        "Workflows",
        "store",
    ):
        assert part in ran.stdout
    assert ran.stdout.count("killed with -9") >= 6


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_second_to_end_it_finds_nothing_left(tmp_path: Path, number: int) -> None:
    around = {**os.environ, "TMPDIR": str(tmp_path)}
    playing = subprocess.Popen(
        [sys.executable, "-u", "-c", _RUN, "Agents"], env=around, stdout=subprocess.PIPE, text=True
    )
    assert playing.stdout is not None
    while "✓" not in playing.stdout.readline():
        continue
    playing.send_signal(number)
    # As a shell counts it, or by the signal itself.
    assert playing.wait(PATIENCE_S) in (128 + number, -number)
    playing.stdout.close()
    assert list(tmp_path.iterdir()) == []
    assert str(tmp_path) not in _running()


@pytest.mark.parametrize("part", ["Agents", pytest.param("Gateways", marks=pytest.mark.prove)])
def test_killed_with_9_it_leaves_nothing_either(short: Path, part: str) -> None:
    around = {**os.environ, "TMPDIR": str(short)}
    playing = subprocess.Popen(
        [sys.executable, "-u", "-c", _RUN, part], env=around, stdout=subprocess.PIPE, text=True
    )
    assert playing.stdout is not None
    while "✓" not in playing.stdout.readline():
        continue
    assert _running().count(f"TMUX_TMPDIR={short}") > 0
    playing.kill()
    playing.wait(PATIENCE_S)
    playing.stdout.close()
    until(lambda: str(short) not in _running() and not list(short.iterdir()))


@pytest.mark.prove
def test_without_tmux_a_program_plays_the_agent(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "env", "sleep"):
        (tools / name).symlink_to(shutil.which(name) or name)
    ran = played(tmp_path / "home", "Gateways", PATH=str(tools))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "a program" in ran.stdout and ran.stdout.count("✓ ") == 7


def test_tmux_is_not_used_in_a_folder_too_deep_for_its_socket(tmp_path: Path) -> None:
    assert not gateway._can_use_tmux(tmp_path / ("deep" * 20))
    assert gateway._can_use_tmux(Path("/tmp")) == (shutil.which("tmux") is not None)


def test_an_agent_takes_anothers_place_while_the_tmux_server_lives_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that ends with its last tmux session may refuse a client that comes at that moment."""
    left: list[set[str]] = []
    with tmux_server() as tmux:
        agent = gateway.DemoAgent(Tour(None, "", tmux.folder))  # type: ignore[arg-type]

        def watched(*words: str) -> "subprocess.CompletedProcess[str]":
            tmux(*words, check=False)
            left.append(tmux.sessions())
            return subprocess.CompletedProcess(words, 0)

        monkeypatch.setattr(agent, "_tmux", watched)
        for _ in range(2):
            agent.begin()
        assert left[-1] == {gateway.NAME} and all(left[1:])


def only(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    monkeypatch.setattr(
        tour, "CHAPTERS", [chapter for chapter in tour.CHAPTERS if part in chapter.title]
    )


def test_a_step_that_cannot_run_here_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    only(monkeypatch, "Gateways")
    monkeypatch.setattr(gateway, "not_installed", lambda extra: ["litestar"])
    assert root.run(["tour"]) == 0
    assert (
        "left out: a gateway needs litestar (pip install '.[server]' in the checkout of Holdfast)"
        in " ".join(capsys.readouterr().out.split())
    )


def test_a_statement_that_does_not_hold_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    only(monkeypatch, "Jobs")
    # A wake-up that is not sent: the sleeper still gets the job, when it rechecks by itself.
    monkeypatch.setattr(Fifos, "notify", lambda *_: None)
    assert root.run(["tour"]) == 1
    out = capsys.readouterr().out
    assert re.search(r"✗ it had the job \d+ ms after it was registered", out)
    assert "this statement is not true" in out and "statements are true" not in out


def test_a_guarantee_that_is_broken_is_found_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    only(monkeypatch, "Locks")
    # A stale token that is let through.
    monkeypatch.setattr(Locks, "check_token", lambda *_: None)
    assert root.run(["tour"]) == 1
    assert "✗ a late write of job-3 is refused, since its token is stale" in capsys.readouterr().out


def test_a_step_that_cannot_even_be_made_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(steps: Tour) -> None:
        steps.say("the moon is eaten")
        raise StoreUnavailable("it is out of reach")

    monkeypatch.setattr(tour, "CHAPTERS", [tour.Chapter("The moon", "It shines.", broken)])
    assert root.run(["tour"]) == 1
    assert "✗ the moon is eaten: it is out of reach" in capsys.readouterr().out


def test_what_a_broken_chapter_started_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    pids: list[int] = []

    def broken(steps: Tour) -> None:
        process = steps.start_script(locks._HOLDER, "job", "router-1")
        pids.append(process.pid)
        steps.check(steps.line(process) == "never", "it says never")

    monkeypatch.setattr(tour, "CHAPTERS", [tour.Chapter("Never", "Why not.", broken)])
    assert root.run(["tour"]) == 1
    assert not os.path.exists(f"/proc/{pids[0]}")


def test_what_a_process_printed_at_once_is_read_line_by_line_and_to_its_end(tmp_path: Path) -> None:
    steps = Tour(None, "", tmp_path)  # type: ignore[arg-type]
    process = steps.start_script("print('ready', flush=True); print('done', flush=True)")
    process.wait()
    assert steps.line(process) == "ready"
    assert steps.outcome(process) == (0, "done")


def test_a_narrow_terminal_gets_short_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    lines = filled(
        "one two three four five six seven eight nine ten eleven twelve", "  · "
    ).splitlines()
    assert lines[0].startswith("  · one") and lines[1].startswith("    ")
    assert max(len(line) for line in lines) <= 40
