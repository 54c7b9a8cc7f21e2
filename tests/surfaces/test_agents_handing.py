"""What `agents start` hands to its pane past tmux."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.runtime import pane_program
from holdfast.runtime.agent_pane import hand_over, reading_command
from tests.harness.timeouts import PATIENCE_S


def test_a_pane_reads_the_environment_from_a_fifo_that_only_its_owner_can_open(
    tmp_path: Path,
) -> None:
    # More than a pipe holds, and what no encoding has.
    given = {b"BIG": b"x" * 100_000, b"ODD": b"\xff\n;#{pid}", b"EMPTY": b"", b"TERM": b"theirs"}
    with hand_over(given, str(tmp_path)) as path:
        # An open file of this process, in /proc, is kept from a tmux server that runs under another
        # group.
        found = os.lstat(path)
        assert (
            stat.S_ISFIFO(found.st_mode)
            and stat.S_IMODE(found.st_mode) == 0o600
            and Path(path).parent == tmp_path
        )
        words = reading_command(path, ["/usr/bin/env", "-0"])
        done = subprocess.run(
            words,
            env={"TERM": "its-own", "OF_TMUX": "1"},
            capture_output=True,
            timeout=PATIENCE_S,
            check=True,
        )
    assert dict(entry.split(b"=", 1) for entry in done.stdout.split(b"\0") if entry) == {
        **given,
        b"TERM": b"its-own",
    }
    assert not list(tmp_path.iterdir())


def test_unread_data_is_removed_with_the_block(tmp_path: Path) -> None:
    with hand_over({b"A": b"1"}, str(tmp_path)):
        pass
    assert not list(tmp_path.iterdir())


def test_a_pane_whose_start_was_killed_ends_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pane_program, "_WAIT_S", 0.1)
    os.mkfifo(path := tmp_path / "fifo")
    with pytest.raises(SystemExit, match="has ended before the agent began"):
        pane_program.main(str(path), sys.executable)
