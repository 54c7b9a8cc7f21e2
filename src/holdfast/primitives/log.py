"""Warnings by Python's `logging`, imported at the first one: most commands log nothing, and start
faster without it. The journal is in journal.py.
"""

from collections.abc import Callable

before_first: Callable[[], None] | None = None
"""Called before a warning: a program that has not set up `logging` does it then."""


def warn(text: str, *values: object, logger: str = "holdfast.locks") -> None:
    """Log a warning."""
    import logging

    if before_first is not None:
        before_first()
    logging.getLogger(logger).warning(text, *values)
