"""Manifests in files: whole or not at all, whatever lies in their place."""

import os
from pathlib import Path

import pytest

from holdfast.adapters.agent_files import ManifestFiles
from holdfast.kernel.limits import MANIFEST_BYTES_MAX

FILES = ManifestFiles()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = str(tmp_path / "a" / "b" / "manifest.json")
    assert FILES.read(path) is None
    FILES.write(path, b"one")
    FILES.write(path, b"two")
    assert FILES.read(path) == b"two"
    assert os.listdir(tmp_path / "a" / "b") == ["manifest.json"]
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    assert os.stat(path).st_mode & 0o077 == 0


def test_a_failed_write_leaves_the_old_one_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "manifest.json")
    FILES.write(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        FILES.write(path, b"new")
    assert FILES.read(path) == b"old"
    assert os.listdir(tmp_path) == ["manifest.json"]


def test_a_fifo_in_its_place_holds_up_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert FILES.read(str(tmp_path / "fifo")) == b""


def test_at_most_the_bound_of_a_manifest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"x" * (MANIFEST_BYTES_MAX + 100))
    assert len(FILES.read(str(path)) or b"") == MANIFEST_BYTES_MAX + 1


def test_folders(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert FILES.is_folder(str(tmp_path))
    assert not FILES.is_folder(str(tmp_path / "file"))
    assert not FILES.is_folder(str(tmp_path / "none"))
    with pytest.raises(OSError):
        FILES.read(str(tmp_path))
