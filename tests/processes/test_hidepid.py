"""/proc mounted with `hidepid`: users see only their own processes, and no claim passes on while
its tree lives.

One user runs a command, and the same user and another one look at the lock. Which processes live is
seen from outside.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.harness.timeouts import until
from tests.processes.trees import deaths, guardian_of, parent, quiet
from tests.processes.users import ONE, TWO, User, needs_users, room
from tests.surfaces.locking import HOLDING, end, line, remark

pytestmark = [pytest.mark.prove, needs_users]


@pytest.fixture(params=["noaccess", "invisible", "ptraceable"])
def users(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[User, User]]:
    """Two users of one store, from each of whom /proc hides the other's processes."""
    with room(tmp_path, request.param) as made:
        one, two = made.user(ONE), made.user(TWO)
        other = int(line(one.begin("locks", "run", "elsewhere", "--", *HOLDING)))
        look = f"cat /proc/{other}/stat"
        assert one.shell(look).status == 0 and two.shell(look).status == 1
        yield one, two


def hold(user: User) -> dict[str, str]:
    """What a user's `locks status` says of the one who holds the lock."""
    [found] = json.loads(user("locks", "status", "r", "--json").out)[0]["holds"]
    assert found["by"] == "one"
    return found  # type: ignore[no-any-return]


def verdict(user: User) -> str:
    return hold(user)["alive"]


def is_refused(user: User) -> bool:
    return user("locks", "run", "-n", "r", "--by", "other", "--", "true").status == 5


def test_the_guardian_proves_a_tree_to_all_and_reports_its_end(users: tuple[User, User]) -> None:
    one, two = users
    first = one.begin("locks", "run", "r", "--by", "one", "--", *parent("none"))
    command, grandchild = map(int, line(first).split())
    with deaths([first.pid, guardian_of(first), command, grandchild]) as (
        wrapper,
        guardian,
        head,
        last,
    ):
        waiters = [
            user.begin("locks", "run", "r", "--by", f"next-{at}", "--", "echo", "in")
            for at, user in enumerate(users)
        ]
        for waiter in waiters:
            assert "waiting" in remark(waiter)
        wrapper.kill()
        head.kill()
        assert [verdict(one), verdict(two)] == ["alive", "alive"]
        assert is_refused(one) and is_refused(two)
        assert [waiter.poll() for waiter in waiters] == [None, None]
        last.kill()
        guardian.wait()
        # Long before the lease ends: the guardian has told them.
        assert [end(waiter)[:2] for waiter in waiters] == [(0, "in\n")] * 2


def test_the_fifo_alone_proves_a_tree_to_all(users: tuple[User, User]) -> None:
    """Nobody renews the lease, which ends soon. The lock stays until the tree ends."""
    one, two = users
    (one.folder / "holdfast.toml").write_text("[locks]\nlease_s = 0.5\n")
    first = one.begin("locks", "run", "r", "--by", "one", "--", *parent("fifo"))
    command, grandchild = map(int, line(first).split())
    with deaths([first.pid, guardian_of(first), command, grandchild]) as (
        wrapper,
        guardian,
        head,
        last,
    ):
        for killed in (wrapper, guardian, head):
            killed.kill()
        waiter = two.begin("locks", "run", "r", "--by", "next", "--", "echo", "in")
        assert "waiting" in remark(waiter)
        until(lambda: datetime.fromisoformat(hold(two)["expires_at"]) < datetime.now(UTC))
        assert [verdict(one), verdict(two)] == ["alive", "alive"]
        assert is_refused(one) and is_refused(two) and waiter.poll() is None
        last.kill()
        # No process told that the tree ended, so the lease had to be over.
        assert end(waiter)[:2] == (0, "in\n")


def test_the_mark_alone_proves_a_tree_to_its_own_user_and_nothing_to_others(
    users: tuple[User, User],
) -> None:
    one, two = users
    first = one.begin("locks", "run", "r", "--by", "one", "--", *parent("mark"))
    command, grandchild = map(int, line(first).split())
    with deaths([first.pid, guardian_of(first), command, grandchild]) as (
        wrapper,
        guardian,
        head,
        last,
    ):
        guardian.kill()
        quiet(first)
        head.wait()
        # The wrapper has adopted the rest.
        assert [verdict(one), verdict(two)] == ["alive", "unknown"]
        wrapper.kill()
        assert [verdict(one), verdict(two)] == ["alive", "unknown"]
        assert is_refused(one) and is_refused(two)
        last.kill()
        # A process that /proc hides could have the mark too.
        assert [verdict(one), verdict(two)] == ["unknown", "unknown"]
