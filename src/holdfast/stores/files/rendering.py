"""JSON for people who read the files: indented by two, keys sorted; whole, or put together of parts."""

from collections.abc import Sequence
from typing import Any

import msgspec


def render(value: Any) -> bytes:
    """A value as a file has it."""
    return _formatted(value) + b"\n"


def as_member(key: str, value: Any) -> bytes:
    """A value as it stands under a key in an object that is the file."""
    # No text in JSON has a line break of its own.
    return b"  " + msgspec.json.encode(key) + b": " + _formatted(value).replace(b"\n", b"\n  ")


def members(parts: Sequence[bytes]) -> bytes:
    """The file of an object whose members are given as `as_member` writes them, sorted: what `render` makes of it all."""
    return b"".join((b"{\n", b",\n".join(parts), b"\n}\n")) if parts else render({})


def _formatted(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value, order="sorted"), indent=2)
