"""Named points at which a test may kill, stop or fail the program."""

from collections.abc import Callable

hook: Callable[[str], None] | None = None
"""Called with the name of each point; `holdfast.testing.faults` sets it."""


def reach(point: str) -> None:
    """The program is about to do what `point` names, or has just done it."""
    if hook is not None:
        hook(point)
