"""A rule, and how to break it."""

from typing import NamedTuple


class Mutant(NamedTuple):
    """One rule, broken."""

    rule: str
    file: str
    """Below src/holdfast."""
    text: str
    instead: str
