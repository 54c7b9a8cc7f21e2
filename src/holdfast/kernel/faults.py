"""Named points at which a test may kill, stop or fail the program. Outside of tests each costs one
look at a global.
"""

from collections.abc import Callable

hook: Callable[[str], None] | None = None
"""Called with the point's name when armed; `holdfast.testing.faults` sets it."""


def reach(point: str) -> None:
    """Mark that the program is about to do what `point` names, or has just done it."""
    if hook is not None:
        hook(point)
