"""The tmux adapter, on a real tmux."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.adapters.tmux import Pane, Tmux, socket_path
from holdfast.domains.agents.ports import TmuxAddress
from holdfast.kernel.errors import Collision, InvalidValue, Unavailable
from holdfast.kernel.holder import Liveness
from tests.harness.timeouts import until
from tests.harness.tmux_server import TmuxServer, tmux_server


@pytest.fixture
def tmux(monkeypatch: pytest.MonkeyPatch) -> Iterator[TmuxServer]:
    with tmux_server() as server:
        monkeypatch.delenv("TMUX", raising=False)
        monkeypatch.setenv("TMUX_TMPDIR", str(server.folder))
        yield server


def start(name: str, *command: str, folder: str = "/", **environment: str) -> Pane:
    return Tmux().start(name, command or ("sleep", "600"), folder=folder, environment=environment)


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
        "s-1",
        "sh",
        "-c",
        f'pwd > {out}.pwd; printf "%s|" "$MARK" "$@" > {out}',
        "sh",
        *words,
        folder=str(tmp_path),
        MARK="m n",
    )
    assert out.read_text() == "|".join(["m n", *words, ""])
    assert Path(f"{out}.pwd").read_text().strip() == str(tmp_path)


def test_the_processes_of_a_tmux_sessions_panes(tmux: TmuxServer) -> None:
    assert Tmux().panes("s-1") == []
    assert not list(tmux.folder.rglob("default")), "looking starts no server"
    first = start("s-1")
    start("s-11")
    assert Tmux().panes("s-1") == [first.pid] == [tmux.pane_pid("s-1")]
    tmux("new-window", "-d", "-t", "=s-1:", "sleep 600")
    tmux(
        "new-window",
        "-d",
        "-t",
        "=s-1:",
        "true",
        ";",
        "set-option",
        "-w",
        "-t",
        "=s-1:2",
        "remain-on-exit",
        "on",
    )
    until(lambda: "1" in tmux("list-panes", "-s", "-t", "=s-1", "-F", "#{pane_dead}").split())
    found = Tmux().panes("s-1")
    assert found is not None and len(found) == 2 and first.pid in found
    for other in ("s", "s-?", "=s-1", "$0", "", "a:b"):
        assert Tmux().panes(other) == []
    tmux.stop()
    assert Tmux(limit_s=0.5).panes("s-1") is None


def test_another_tmux_server_is_asked_by_its_socket(tmux: TmuxServer) -> None:
    with tmux_server() as another:
        another("new-session", "-d", "-s", "s-1", "sleep 600")
        server = TmuxAddress(socket_path=str(another.socket))
        assert Tmux().panes("s-1", server) == [another.pane_pid("s-1")]
        assert Tmux().panes("s-1") == []
        # Its silence says nothing of the other.
        program = Tmux(limit_s=0.5)
        another.stop()
        assert program.panes("s-1", server) is None and program.panes("s-1") == []
        another.go_on()
    assert Tmux().panes("s-1", TmuxAddress(socket_path="/nosuch/socket")) == []
    tmux("-L", "lab", "new-session", "-d", "-s", "s-1", "sleep 600")
    try:
        assert len(Tmux().panes("s-1", TmuxAddress(socket_name="lab")) or []) == 1
    finally:
        tmux("-L", "lab", "kill-server")


def test_the_socket_is_where_tmux_itself_finds_its_server(
    tmux: TmuxServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = socket_path()
    start("s-1")
    assert (
        tmux("display-message", "-p", "-t", "=s-1:", "#{socket_path}").strip()
        == expected
        == str(tmux.socket)
    )
    monkeypatch.setenv("TMUX", "/a,b/default,123,0")
    assert socket_path() == "/a,b/default"
    monkeypatch.delenv("TMUX")
    monkeypatch.setenv("TMUX_TMPDIR", "/nosuch")
    assert socket_path() == f"/tmp/tmux-{os.getuid()}/default"


def test_a_new_pane_stays_until_it_is_left_or_removed(tmux: TmuxServer) -> None:
    start("keep")
    # Linux may drop what the first process of a terminal writes just before it ends.
    dying = start("s-1", "sh", "-c", "echo last words; read end; exit 3")
    until(lambda: "last words" in tmux("capture-pane", "-p", "-t", dying.id))
    tmux("send-keys", "-t", dying.id, "Enter")
    until(lambda: Tmux().has_ended(dying))
    assert not Tmux().leave(dying) and "s-1" in tmux.sessions()
    ended = Tmux().remove(dying)
    # tmux does not always learn the status.
    assert ended.screen == "last words" and ended.status in (3, None)
    assert tmux.sessions() == {"keep"}
    assert (
        Tmux().remove(dying) == (None, "") and Tmux().has_ended(dying) and not Tmux().leave(dying)
    )

    living = start("s-2")
    assert Tmux().leave(living) and not Tmux().has_ended(living)
    assert Tmux(limit_s=0.5).remove(living).status is None
    assert tmux.sessions() == {"keep", "s-2"}, "what lives is not removed"
    os.kill(living.pid, signal.SIGKILL)
    until(lambda: tmux.sessions() == {"keep"})


def test_words_that_end_in_a_semicolon_end_no_command(tmux: TmuxServer, tmp_path: Path) -> None:
    folder = tmp_path / "odd;"
    folder.mkdir()
    out = tmp_path / "out"
    os.mkfifo(out)
    start("s-1", "sh", "-c", f'echo "$PWD $MARK" > {out}', folder=str(folder), MARK="m;")
    assert out.read_text() == f"{folder} m;\n"


@pytest.mark.parametrize("name", ["#S", "a#(touch ran)b", "##{pid}", "#[x", "##[x", "a###", "#,#}"])
def test_the_names_of_session_and_folder_are_taken_literally(
    tmux: TmuxServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    # Where the tmux server begins, and what a format runs.
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / name
    folder.mkdir()
    os.mkfifo(out := tmp_path / "out")
    start(name, "sh", "-c", f"pwd > {out}; exec sleep 600", folder=str(folder))
    assert out.read_text() == f"{folder}\n"
    assert Tmux().liveness(name) is Liveness.ALIVE
    # What a format runs, it runs in the background: this one is behind it.
    tmux("run-shell", "true")
    assert not list(tmp_path.rglob("ran"))


def test_a_second_one_of_a_name_is_refused(tmux: TmuxServer) -> None:
    start("s-1")
    with pytest.raises(Collision, match="s-1"):
        start("s-1")
    assert tmux.sessions() == {"s-1"}


def test_the_tmux_session_around_this_process(
    tmux: TmuxServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Tmux().current() is None
    start("s-1")
    start("s-2")
    inside = tmux(
        "display-message", "-p", "-t", "=s-1:", "#{socket_path},#{pid},0 #{pane_id}"
    ).split()
    monkeypatch.setenv("TMUX", inside[0])
    monkeypatch.setenv("TMUX_PANE", inside[1])
    assert Tmux().current() == "s-1"
    tmux("kill-server")
    assert Tmux().current() is None


def test_a_tmux_that_is_not_there_is_unknown(
    tmux: TmuxServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Tmux().liveness("s-1") is Liveness.UNKNOWN
    with pytest.raises(Unavailable, match="no tmux"):
        start("s-1")


def test_a_tmux_with_an_unexpected_answer_is_unknown(
    tmux: TmuxServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = tmp_path / "tmux"
    fake.write_text(
        "#!/bin/sh\necho 'error connecting to /x/default (Permission denied)' >&2\nexit 1\n"
    )
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
