"""The tmux adapter, on a real tmux."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.adapters.tmux import Tmux
from holdfast.kernel.errors import Collision, InvalidValue, Unavailable
from holdfast.kernel.holder import Liveness
from tests.tmux_server import TmuxServer, tmux_server


@pytest.fixture
def tmux(monkeypatch: pytest.MonkeyPatch) -> Iterator[TmuxServer]:
    with tmux_server() as server:
        monkeypatch.delenv("TMUX", raising=False)
        monkeypatch.setenv("TMUX_TMPDIR", str(server.folder))
        yield server


def start(name: str, *command: str, folder: str = "/", **environment: str) -> None:
    Tmux().start(name, command or ("sleep", "600"), folder=folder, environment=environment)


def test_a_tmux_session_is_alive_until_it_is_killed(tmux: TmuxServer) -> None:
    assert Tmux().liveness("s-1") is Liveness.DEAD
    assert not list(tmux.folder.rglob("default")), "looking starts no server"
    start("s-1")
    assert Tmux().liveness("s-1") is Liveness.ALIVE
    start("s-2")
    tmux("kill-session", "-t", "=s-1")
    assert Tmux().liveness("s-1") is Liveness.DEAD
    tmux("kill-server")
    assert Tmux().liveness("s-2") is Liveness.DEAD


@pytest.mark.parametrize("other", ["s-1", "s-12", "s", "s-?", "s-*", "=s-11", "@1", "$0"])
def test_names_are_matched_exactly(tmux: TmuxServer, other: str) -> None:
    start("s-11")
    assert Tmux().liveness("s-11") is Liveness.ALIVE
    assert Tmux().liveness(other) is Liveness.DEAD


@pytest.mark.parametrize("name", ["", "a.b", "a:b", "a:0.0"])
def test_what_tmux_names_no_session_is_unknown_and_not_started(tmux: TmuxServer, name: str) -> None:
    assert Tmux().liveness(name) is Liveness.UNKNOWN
    with pytest.raises(InvalidValue, match="tmux session"):
        start(name)


def test_a_command_gets_its_words_folder_and_environment(tmux: TmuxServer, tmp_path: Path) -> None:
    out = tmp_path / "out"
    os.mkfifo(out)
    words = ["a b", "$HOME", "it's", '"', "#{session_name}", "é"]
    start(
        "s-1", "sh", "-c", f'pwd > {out}.pwd; printf "%s|" "$MARK" "$@" > {out}', "sh", *words, folder=str(tmp_path), MARK="m n"
    )
    assert out.read_text() == "|".join(["m n", *words, ""])
    assert Path(f"{out}.pwd").read_text().strip() == str(tmp_path)


def test_a_second_one_of_a_name_is_refused(tmux: TmuxServer) -> None:
    start("s-1")
    with pytest.raises(Collision, match="s-1"):
        start("s-1")
    assert tmux.sessions() == {"s-1"}


def test_the_tmux_session_around_this_process(tmux: TmuxServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Tmux().current() is None
    start("s-1")
    start("s-2")
    inside = tmux("display-message", "-p", "-t", "=s-1:", "#{socket_path},#{pid},0 #{pane_id}").split()
    monkeypatch.setenv("TMUX", inside[0])
    monkeypatch.setenv("TMUX_PANE", inside[1])
    assert Tmux().current() == "s-1"
    tmux("kill-server")
    assert Tmux().current() is None


def test_a_tmux_that_is_not_there_is_unknown(tmux: TmuxServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Tmux().liveness("s-1") is Liveness.UNKNOWN
    with pytest.raises(Unavailable, match="no tmux"):
        start("s-1")


def test_a_tmux_that_does_not_answer_as_it_should_is_unknown(
    tmux: TmuxServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = tmp_path / "tmux"
    fake.write_text("#!/bin/sh\necho 'error connecting to /x/default (Permission denied)' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert Tmux().liveness("s-1") is Liveness.UNKNOWN
    with pytest.raises(Unavailable, match="Permission denied"):
        start("s-1")


def test_a_stopped_server_is_unknown_and_is_waited_for_once(tmux: TmuxServer) -> None:
    start("s-1")
    tmux.stop()
    program = Tmux(limit_s=0.5)
    begun_s = time.monotonic()
    assert {program.liveness(f"s-{number}") for number in range(50)} == {Liveness.UNKNOWN}
    assert 0.5 <= time.monotonic() - begun_s < 20
    tmux.go_on()
    assert Tmux().liveness("s-1") is Liveness.ALIVE
