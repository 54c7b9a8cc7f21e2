"""What a worker has to do, and what it reports at its end.

The worker itself is in runtime/worker.py: it starts processes, which a domain does not.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias

from holdfast.domains.jobs.records import Job
from holdfast.kernel.errors import InvalidValue

Handler: TypeAlias = Callable[[Job], str | None]
Stdin: TypeAlias = Literal["job", "prompt", "none"]


class WorkRequest(NamedTuple):
    """The arguments of `Jobs.work`, checked."""

    queue: str
    task: tuple[str, ...] | Handler
    limit: int | None
    wait_s: float
    validate: tuple[str, ...] | None
    stdin: Stdin
    heartbeat_s: float | None
    stop_fd: int | None
    adopts_orphans: bool
    on_output: Callable[[str], None] | None
    on_event: Callable[[str], None] | None

    @property
    def command(self) -> tuple[str, ...] | None:
        return self.task if isinstance(self.task, tuple) else None


class WorkReport(NamedTuple):
    """How many attempts ended how. `lost` are those that were taken away before their verdict, and
    `given_back` those that were put back because the worker was stopped. `stopped` is true when a
    signal or `stop_fd` ended the work.
    """

    completed: int = 0
    failed: int = 0
    lost: int = 0
    given_back: int = 0
    stopped: bool = False

    @property
    def attempts(self) -> int:
        """How many attempts there were."""
        return self.completed + self.failed + self.lost + self.given_back


def checked_task(task: Sequence[str] | Handler) -> tuple[str, ...] | Handler:
    """A command as a tuple of words, or the handler. Raises InvalidValue for anything else."""
    if callable(task):
        return task
    return checked_command(task, "task", "a list of words, or a function that takes the job")


def checked_command(
    words: Sequence[str], field: str, instead: str = "a list of words"
) -> tuple[str, ...]:
    """A command as a tuple of words. Raises InvalidValue for anything else, such as a string, whose
    characters would be taken for the words.
    """
    checked = tuple(words) if isinstance(words, list | tuple) else ()
    if not checked or not all(isinstance(word, str) for word in checked):
        raise InvalidValue(f"the {field} is not a command: give {instead}", field=field)
    return checked
