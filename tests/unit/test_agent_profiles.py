"""Profiles that users have written wrongly: one clear error."""

import os
from pathlib import Path

import pytest

from holdfast.adapters.profiles import profile_named
from holdfast.kernel.errors import InvalidValue


@pytest.mark.parametrize(
    "text",
    [
        "nonsense = [",
        '[screen]\nbox = "("',
        '[screen]\ndialog = "#{pane_id}"',
        '[screen]\ndraft = "no group"',
        '[keys]\ninterrupt = "C-z"',
        # Every prompt begins with that.
        '[prompts]\ncommands = [""]',
        '[prompts]\nunsent = [""]',
    ],
)
def test_a_wrong_profile_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(InvalidValue, match="mine"):
        profile_named("mine", tmp_path)


def test_a_fifo_or_a_folder_is_no_profile(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.toml")
    (tmp_path / "folder.toml").mkdir()
    for name in ("fifo", "folder"):
        with pytest.raises(InvalidValue, match="it is no file"):
            profile_named(name, tmp_path)
