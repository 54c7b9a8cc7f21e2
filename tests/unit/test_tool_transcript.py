"""What a transcript says of a turn that a person stopped."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.adapters.tool_transcript import was_stopped

_STOPPED = "[Request interrupted by user]"


def entry(content: Any, *, role: str = "user", prompt_id: str = "p") -> str:
    return json.dumps({"promptId": prompt_id, "message": {"role": role, "content": content}})


@pytest.mark.parametrize(
    ("line", "stopped"),
    [
        (entry([{"type": "text", "text": _STOPPED}]), True),
        (entry([{"type": "text", "text": "[Request interrupted by user for tool use]"}]), True),
        (entry([{"type": "text", "text": _STOPPED}], prompt_id="other"), False),
        # What somebody asks, and what a command prints.
        (entry(f"why does it say {_STOPPED}?"), False),
        (entry(_STOPPED), False),
        (entry([{"type": "text", "text": f"it says {_STOPPED}"}]), False),
        (entry([{"type": "tool_result", "content": _STOPPED}]), False),
        (f'"p" {_STOPPED}', False),
        (f'["p", "{_STOPPED}"]', False),
    ],
)
def test_only_its_own_entry_says_that_a_person_stopped_it(
    tmp_path: Path, line: str, stopped: bool
) -> None:
    path = tmp_path / "transcript"
    path.write_text(f"{entry('hello')}\n{line}\n")
    assert was_stopped(str(path), "p") is stopped


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path / "missing", tmp_path, Path("/dev/zero")):
        assert not was_stopped(str(path), "p")
