"""Tuples as bytes that sort as the tuples do, so that every store orders an index alike.

Parts are strings, 64-bit integers and booleans. A string is escaped and ended by NUL NUL, so a
shorter one sorts before a longer one that starts with it, and no part runs into the next.
"""

from functools import lru_cache
from typing import NamedTuple

from holdfast.kernel.errors import InvalidValue

Part = str | int | bool
Parts = tuple[Part, ...]

_OFFSET = 1 << 63
_NEXT = [bytes([byte + 1]) for byte in range(255)]


def encode(parts: Parts) -> bytes:
    """The sortable form. Raises InvalidValue for a part that is no string or 64-bit integer."""
    # Tuples are short, so growing the bytes costs less than a list of pieces.
    out = b""
    for part in parts:
        if isinstance(part, str):
            text = part.encode("utf-8", "surrogatepass")
            out += (text.replace(b"\0", b"\0\xff") if b"\0" in text else text) + b"\0\0"
        elif isinstance(part, int) and -_OFFSET <= part < _OFFSET:
            out += (part + _OFFSET).to_bytes(8, "big")
        else:
            raise InvalidValue(
                f"a {type(part).__name__} cannot be part of an index: use text or a 64-bit integer"
            )
    return out


class Span(NamedTuple):
    """A half-open span of encoded tuples; `stop` None is no upper bound."""

    start: bytes
    stop: bytes | None


@lru_cache(maxsize=1024)
def span_of(match: Parts) -> Span:
    """The span of all tuples that begin with `match`. The same few are looked for again and
    again.
    """
    return span(match)


def span(match: Parts = (), start: Parts | None = None, stop: Parts | None = None) -> Span:
    """The span of all tuples that begin with `match` and go on from `start` up to but not including
    `stop`.
    """
    prefix = encode(match)
    if start is None and stop is None:
        return Span(prefix, beyond(prefix))
    low = prefix if start is None else prefix + encode(start)
    return Span(low, beyond(prefix) if stop is None else prefix + encode(stop))


def beyond(prefix: bytes) -> bytes | None:
    """The least bytes greater than all that start with `prefix`; None when there are none."""
    trimmed = prefix.rstrip(b"\xff")
    if not trimmed:
        return None
    return trimmed[:-1] + _NEXT[trimmed[-1]]


def beyond_text(prefix: str) -> str | None:
    """The same for text keys, which all stores compare by their code points."""
    stripped = prefix.rstrip("\U0010ffff")
    if not stripped:
        return None
    following = ord(stripped[-1]) + 1
    # Surrogates are no characters, and no store could encode one.
    return stripped[:-1] + chr(0xE000 if 0xD800 <= following <= 0xDFFF else following)
