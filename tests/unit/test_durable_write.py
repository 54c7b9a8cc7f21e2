"""atomic_durable_write: the old content or the new, and nothing left beside it."""

import os
from pathlib import Path
from unittest import mock

import pytest

from holdfast import atomic_durable_write
from holdfast.adapters.durable_write import make_whole


def test_a_file_is_made_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "f"
    atomic_durable_write(path, b"one")
    assert path.read_bytes() == b"one"
    path.chmod(0o640)
    atomic_durable_write(str(path), "zwei \u00fc")
    assert path.read_text(encoding="utf-8") == "zwei \u00fc"
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["f"]


def test_a_new_file_has_the_mode_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        atomic_durable_write(tmp_path / "f", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o640


def test_a_link_is_replaced_and_its_target_left_alone(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("old")
    (tmp_path / "l").symlink_to(tmp_path / "target")
    atomic_durable_write(tmp_path / "l", b"new")
    assert not (tmp_path / "l").is_symlink() and (tmp_path / "target").read_text() == "old"


def test_its_steps_are_in_the_order_that_a_power_loss_asks_for(tmp_path: Path) -> None:
    steps: list[str] = []
    real = {name: getattr(os, name) for name in ("fsync", "rename")}

    def noted(name: str) -> mock.Mock:
        def call(*given: object, **more: object) -> object:
            is_folder = name == "fsync" and os.path.isdir(f"/proc/self/fd/{given[0]}")
            steps.append(f"{name} folder" if is_folder else name)
            return real[name](*given, **more)

        return mock.Mock(side_effect=call)

    with mock.patch("os.fsync", noted("fsync")), mock.patch("os.rename", noted("rename")):
        atomic_durable_write(tmp_path / "f", b"x")
    assert steps == ["fsync", "rename", "fsync folder"]


@pytest.mark.parametrize("step", ["fsync", "rename", "fchmod"])
def test_when_it_fails_the_old_content_is_there_and_nothing_else(tmp_path: Path, step: str) -> None:
    path = tmp_path / "f"
    path.write_text("old")
    with mock.patch(f"os.{step}", side_effect=OSError(28, "No space left on device")):
        with pytest.raises(OSError, match="No space"):
            atomic_durable_write(path, b"new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["f"]


def test_a_missing_file_is_created_whole(tmp_path: Path) -> None:
    make_whole(tmp_path / "f", b"first")
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    (tmp_path / "l").symlink_to(tmp_path / "nothing")
    for name in ("f", "l"):
        with pytest.raises(FileExistsError):
            make_whole(name, b"second", folder_fd=folder)
    make_whole("g", b"third", folder_fd=folder)
    os.close(folder)
    assert ((tmp_path / "f").read_bytes(), (tmp_path / "g").read_bytes()) == (b"first", b"third")
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o600
    assert sorted(os.listdir(tmp_path)) == ["f", "g", "l"]
