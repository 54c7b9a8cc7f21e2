"""One rule, and how it is broken."""

from typing import NamedTuple


class Mutant(NamedTuple):
    """One rule, broken."""

    rule: str
    file: str
    """Below src/holdfast."""
    text: str
    instead: str
