"""One call of one process, from the instant it was made to the instant it was answered."""

from collections.abc import Mapping
from typing import Any, NamedTuple

NEVER = float("inf")

DIE = "die"
"""The call that stands for a process's death, which frees what it held at any time from then on, or
never.
"""


class Operation(NamedTuple):
    """`keys` names what it touches; one without keys touches all that its process does. `end`
    NEVER: pending, so it took effect at any time after `begin`, or never; then there is no
    `answer`.
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
        """True when nobody heard of its end."""
        return self.end == NEVER

    def __str__(self) -> str:
        said = ", ".join(f"{name}={value}" for name, value in self.arguments.items())
        what = f"{self.call}({', '.join(self.keys)}{'; ' if said else ''}{said})"
        when = f"{self.begin:.6f} to {'no answer' if self.pending else f'{self.end:.6f}'}"
        return f"[{when}] {self.process}: {what}" + ("" if self.pending else f" -> {self.answer}")
