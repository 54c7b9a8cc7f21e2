"""One call of one process, from its start to its answer."""

from collections.abc import Mapping
from typing import Any, NamedTuple

NEVER = float("inf")

DIE = "die"
"""The call that stands for a process's death, which frees what it held at any time from then on, or
never.
"""


class Operation(NamedTuple):
    """`keys` names what it touches; without keys it touches everything of its process. `end` NEVER
    means pending: it took effect at any time after `begin`, or never, and there is no `answer`.
    """

    id: str
    process: str
    call: str
    keys: tuple[str, ...]
    arguments: Mapping[str, Any]
    begin: float
    end: float = NEVER
    answer: Any = None

    @property
    def pending(self) -> bool:
        """True if nobody knows its end."""
        return self.end == NEVER

    def __str__(self) -> str:
        said = ", ".join(f"{name}={value}" for name, value in self.arguments.items())
        what = f"{self.call}({', '.join(self.keys)}{'; ' if said else ''}{said})"
        when = f"{self.begin:.6f} to {'no answer' if self.pending else f'{self.end:.6f}'}"
        return f"[{when}] {self.process}: {what}" + ("" if self.pending else f" -> {self.answer}")
