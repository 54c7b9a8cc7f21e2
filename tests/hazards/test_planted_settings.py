"""A holdfast.toml that somebody else put above the working folder chooses no store: prompts and
commands come from there.
"""

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.kernel.errors import InvalidValue
from holdfast.runtime.configuration import load_settings, store_origin
from tests.surfaces.command import CommandLine

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root: gives files to another user")
STRANGER = 65534
TEXT = 'store = "sqlite:planted.sqlite"\nnamespace = "planted"\n'


@pytest.fixture
def above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A holdfast.toml in a folder that everybody may write, two folders above the working
    folder.
    """
    monkeypatch.delenv("SUDO_UID", raising=False)
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        os.chmod(folder, 0o1777)
        (below := Path(folder, "root", "work")).mkdir(parents=True)
        (path := Path(folder, "holdfast.toml")).write_text(TEXT)
        monkeypatch.chdir(below)
        yield path


def test_ones_own_and_roots_are_obeyed(above: Path) -> None:
    assert load_settings().store == f"sqlite:{above.parent}/planted.sqlite"
    assert store_origin() == str(above)


@needs_root
@pytest.mark.parametrize("where", ["file", "link", "link to one's own"])
def test_anothers_is_refused_and_the_message_says_how_to_allow_it(
    above: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "file":
        os.chown(above, STRANGER, STRANGER)
    else:
        target = above.with_name("elsewhere.toml")
        os.rename(above, target)
        above.symlink_to(target)
        if where == "link":
            os.chown(target, STRANGER, STRANGER)
        else:
            os.lchown(above, STRANGER, STRANGER)
    for ask in (load_settings, store_origin):
        with pytest.raises(InvalidValue) as refused:
            ask()
        assert refused.value.fields["source"] == str(above)
        assert f"HOLDFAST_CONFIG={above}" in refused.value.message
    monkeypatch.setenv("HOLDFAST_CONFIG", str(above))
    assert load_settings().namespace == "planted"
    monkeypatch.setenv("HOLDFAST_CONFIG", "/dev/null")
    assert load_settings().namespace == "default"


def test_a_world_writable_file_is_refused_and_a_group_writable_one_is_not(above: Path) -> None:
    above.chmod(0o664)
    assert load_settings().namespace == "planted"
    above.chmod(0o666)
    with pytest.raises(InvalidValue, match="everybody may write"):
        load_settings()


@needs_root
def test_under_sudo_the_callers_own_is_obeyed(above: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(above, STRANGER, STRANGER)
    monkeypatch.setenv("SUDO_UID", str(STRANGER))
    assert load_settings().namespace == "planted"
    monkeypatch.setenv("SUDO_UID", str(STRANGER - 1))
    with pytest.raises(InvalidValue):
        load_settings()


@needs_root
def test_only_root_believes_what_sudo_says(above: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody can set a variable."""
    os.chown(above, STRANGER, STRANGER)
    monkeypatch.setenv("SUDO_UID", str(STRANGER))
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(InvalidValue):
        load_settings()


@needs_root
def test_a_planted_file_makes_no_command_run_anothers_prompt(above: Path, tmp_path: Path) -> None:
    """As it was done: a store of the attacker's, with a job in it, chosen by a file above root's
    working folder.
    """
    planted = CommandLine(
        tmp_path,
        HOLDFAST_STORE=f"sqlite:{above.parent}/planted.sqlite",
        HOLDFAST_NAMESPACE="planted",
    )
    assert (
        planted(
            "jobs",
            "register",
            "--prompt",
            "touch pwned",
            "--agent",
            "shell",
            "--agent-session",
            "s",
        ).status
        == 0
    )
    os.chown(above, STRANGER, STRANGER)
    work = above.parent / "root" / "work"
    ran = CommandLine(work)(
        "jobs", "run", "--agent-session", "s", "--once", "--", "sh", "-c", "cat > pwned"
    )
    assert ran.status == 2 and str(above) in ran.err, ran
    assert list(work.rglob("pwned")) == []


@pytest.mark.parametrize("what", ["fifo", "folder", "dangling"])
def test_what_is_no_plain_file_is_passed_over(above: Path, what: str) -> None:
    above.unlink()
    if what == "fifo":
        os.mkfifo(above)
    elif what == "folder":
        above.mkdir()
    else:
        above.symlink_to("nowhere")
    assert load_settings().namespace == "default"


def test_a_named_file_is_read_wherever_it_is_and_must_be_there(
    above: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.toml").write_text('store = "sqlite:here.sqlite"\n')
    monkeypatch.setenv("HOLDFAST_CONFIG", str(tmp_path / "mine.toml"))
    assert (load_settings().store, load_settings().namespace) == (
        f"sqlite:{tmp_path}/here.sqlite",
        "default",
    )
    assert store_origin() == str(tmp_path / "mine.toml")
    monkeypatch.setenv("HOLDFAST_CONFIG", str(tmp_path / "gone.toml"))
    with pytest.raises(InvalidValue, match=r"gone\.toml"):
        load_settings()
    monkeypatch.setenv("HOLDFAST_CONFIG", "")
    assert load_settings().namespace == "planted"


def test_the_file_that_was_looked_at_is_the_one_that_is_read(
    above: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the reading it may be replaced: what is read comes from the descriptor
    that was looked at.
    """
    seen: list[int] = []
    ask = os.fstat

    def swapped(fd: int) -> os.stat_result:
        if stat.S_ISREG((found := ask(fd)).st_mode) and not seen:
            seen.append(fd)
            above.unlink()
            above.write_text('namespace = "swapped"\n')
        return found

    monkeypatch.setattr(os, "fstat", swapped)
    assert load_settings().namespace == "planted" and seen


def test_a_folder_that_is_named_is_an_error_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_CONFIG", str(tmp_path))
    with pytest.raises(InvalidValue, match="unset HOLDFAST_CONFIG"):
        load_settings()
