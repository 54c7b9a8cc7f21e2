"""What the kernel says of other processes. Of the standard library alone: the benchmark's venv has no more."""

from pathlib import Path


def children(pid: int) -> list[int]:
    """The processes that its first thread has begun, and that it has not waited for."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def state_of(pid: int) -> str | None:
    """The state of a process's first thread in one letter, such as T while it stands still; None when there is no such
    process."""
    try:
        return stat_of(pid)[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def stat_of(pid: int) -> list[str]:
    """The fields of its `stat` behind its name, which may hold anything. Raises OSError when there is no such process."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
