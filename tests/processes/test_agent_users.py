"""Agents of ordinary users: each stops and restarts its own, and nobody runs as somebody else."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.users import ONE, TWO, Room, User, needs_users, room

pytestmark = [pytest.mark.prove, needs_users]


class Owner:
    """A user of this machine, with a tmux of its own."""

    def __init__(self, place: Room, uid: int) -> None:
        self.user: User = place.user(uid)
        self.uid = uid
        tmux = self.user.folder / "tmux"
        tmux.mkdir()
        os.chown(tmux, uid, uid)
        # Otherwise tmux would run commands by the shell of `nobody`, which runs none.
        self.user.environment |= {"TMUX_TMPDIR": str(tmux), "SHELL": "/bin/sh"}

    def __call__(self, *words: str) -> dict[str, object]:
        ran = self.user("agents", words[0], "--json", *words[1:])
        assert ran.status == 0, ran.err
        found: dict[str, object] = json.loads(ran.out)
        return found


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Room]:
    if shutil.which("tmux") is None:
        pytest.skip("there is no tmux")
    with room(tmp_path) as made:
        yield made
    # What a failed test has left.
    for socket in tmp_path.glob("home-*/tmux/*/default"):
        subprocess.run(["tmux", "-S", str(socket), "kill-server"], check=False, capture_output=True)


def owner_of(agent: object) -> int:
    assert isinstance(agent, dict)
    return os.stat(f"/proc/{agent['holder']['pid']}").st_uid


def test_a_user_stops_and_restarts_an_agent_of_its_own(place: Room) -> None:
    one = Owner(place, ONE)
    assert owner_of(one("start", "gpu", "--", "sleep", "600")) == ONE
    assert owner_of(one("restart", "gpu")["agent"]) == ONE
    assert "no command" not in one.user("agents", "logs", "gpu").err
    done = one("stop", "gpu")
    assert (done["was_running"], done["tmux_session"]) == (True, "ended")


def test_an_agent_of_another_user_is_neither_stopped_nor_restarted(place: Room) -> None:
    one, two, root = Owner(place, ONE), Owner(place, TWO), Owner(place, 0)
    agent = one("start", "gpu", "--", "sleep", "600")
    ran = two.user("agents", "stop", "gpu")
    assert ran.status == 4 and f"runs as user {ONE}" in ran.err
    # Root could. But only the user who ran it knows how it was started: nothing of it runs as root.
    for other in (two, root):
        ran = other.user("agents", "restart", "gpu")
        assert ran.status == 1 and "nothing is known here" in ran.err
    assert owner_of(agent) == ONE
    assert two.user("agents", "list", "--all").out.count("\n") == 1
    one("stop", "gpu")
    # How it ended is for its own user.
    assert two.user("agents", "list", "--all").out == ""
    assert "exited 143" in one.user("agents", "list", "--all").out
