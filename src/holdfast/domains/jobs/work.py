"""What a worker has to do, and what it reports at its end.

The worker itself is in runtime/worker.py: it starts processes, which a domain does not.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

from holdfast.domains.jobs.records import Job
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.names import check_label

Handler: TypeAlias = Callable[[Job], str | None]
Stdin: TypeAlias = Literal["job", "prompt", "none"]


class WorkRequest(NamedTuple):
    """The arguments of `Jobs.work`."""

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

    def check(self) -> None:
        """Raises InvalidName and InvalidValue for arguments that no worker can work with."""
        check_label(self.queue, "agent session")
        if self.wait_s != self.wait_s or (self.limit is not None and self.limit < 1):
            raise InvalidValue("give a wait_s that is a number, and a limit of at least 1")
        if self.heartbeat_s is not None and not 0 < self.heartbeat_s < float("inf"):
            raise InvalidValue(
                "heartbeat_s must be a number above 0, and not infinite", field="heartbeat_s"
            )
        if self.stdin not in get_args(Stdin):
            raise InvalidValue(f"stdin is {self.stdin!r}: use job, prompt or none", field="stdin")


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
