"""Signal files: made only where there is nothing, through no link, and removed only if they are
ours.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.adapters.signal_files import SignalFiles
from holdfast.kernel.errors import InvalidValue
from tests.harness.errors import raises


@pytest.fixture
def signals(tmp_path: Path) -> SignalFiles:
    return SignalFiles(tmp_path / "deep" / "signals")


def test_a_signal_comes_and_goes(signals: SignalFiles) -> None:
    path = signals.path_of("train", 7)
    assert not signals.given(path)
    assert signals.give(path, "train", 7) is None
    assert signals.give(path, "train", 7) is None
    assert signals.given(path)
    assert not signals.clear(path, "other", 7)
    assert not signals.clear(path, "train", 6)
    assert signals.clear(path, "train", 7)
    assert not signals.given(path) and not signals.clear(path, "train", 7)
    assert os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o700


def test_a_signal_says_for_which_swap_it_was_made(signals: SignalFiles) -> None:
    path = signals.path_of("train", 7)
    assert signals.swap_of(path, "train", 7) == 0
    assert signals.give(path, "train", 7, 11) is None
    assert signals.give(path, "train", 7, 12) is None
    assert signals.swap_of(path, "train", 7) == 11
    assert signals.swap_of(path, "train", 8) == signals.swap_of(path, "other", 7) == 0


def test_a_signal_written_by_many_at_once_is_not_taken_for_a_foreign_file(
    signals: SignalFiles,
) -> None:
    """A reader may give it a moment after the swap did; it must never find half of it."""
    with ThreadPoolExecutor(8) as pool:
        for token in range(200):
            path = signals.path_of("train", token)
            assert set(
                pool.map(lambda _, p=path, t=token: signals.give(p, "train", t), range(8))
            ) == {None}
            assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]
            assert signals.clear(path, "train", token)


def test_two_registrations_share_no_path(signals: SignalFiles) -> None:
    assert signals.path_of("train", 7) != signals.path_of("train", 8)


@pytest.mark.parametrize(
    "path",
    [
        "relative",
        "./x",
        "",
        "/",
        "/x/",
        "/x/..",
        "/no-such-folder-here/x",
        "/x/a\0b",
        "/" + "a/" * 600 + "x",
    ],
)
def test_a_path_that_cannot_be_is_refused(signals: SignalFiles, path: str) -> None:
    with raises(InvalidValue, field="preempt_signal_path"):
        signals.checked(path, "train")


@pytest.mark.parametrize(
    "kind", ["link", "dangling link", "folder", "fifo", "file", "other's signal"]
)
def test_where_something_else_is_the_path_is_refused_and_that_thing_untouched(
    signals: SignalFiles, tmp_path: Path, kind: str
) -> None:
    path, target = tmp_path / "s", tmp_path / "target"
    if kind == "link":
        target.write_text("mine")
        path.symlink_to(target)
    elif kind == "dangling link":
        path.symlink_to(target)
    elif kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "file":
        path.write_text('{"holdfast_preempt": 1}')
    else:
        assert signals.give(str(path), "other", 3) is None
    before = os.lstat(path)
    with raises(InvalidValue, field="preempt_signal_path"):
        signals.checked(str(path), "train")
    # And if it came there after the registration:
    assert "another file" in str(signals.give(str(path), "train", 7))
    assert not signals.clear(str(path), "train", 7)
    assert os.lstat(path).st_ino == before.st_ino
    assert target.exists() == (kind == "link")
    assert not target.exists() or target.read_text() == "mine"


def test_a_left_over_of_the_same_workflow_is_no_obstacle(
    signals: SignalFiles, tmp_path: Path
) -> None:
    path = str(tmp_path / "s")
    assert signals.give(path, "train", 3) is None
    assert signals.checked(path, "train") == path
    # Nor is it taken for the next one's signal.
    assert signals.give(path, "train", 4, 11) is None
    assert signals.swap_of(path, "train", 4) == 11


def test_a_folder_that_became_a_link_is_not_followed(signals: SignalFiles, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    path = signals.checked(str(tmp_path / "folder" / "s"), "train")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "folder").rmdir()
    (tmp_path / "folder").symlink_to(tmp_path / "elsewhere")
    assert "cannot be made" in str(signals.give(path, "train", 7))
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert signals.give(str(tmp_path / "elsewhere" / "s"), "train", 7) is None
    assert not signals.clear(path, "train", 7)
    assert (tmp_path / "elsewhere" / "s").exists()


def test_a_link_among_the_folders_is_made_out_at_the_registration(
    signals: SignalFiles, tmp_path: Path
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert signals.checked(str(tmp_path / "link" / "s"), "train") == str(tmp_path / "real" / "s")
