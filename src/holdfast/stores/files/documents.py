"""A file that holds all records of a space, or of several: its JSON, the documents in it, and the
same written again.

JSON for people who read the files: indented by two, keys sorted; whole, or put together of parts.

Keys as names of files, and back.

A key that is a plain id is its own name, so that folders of other programs are read as they are.
Every other is encoded (kernel/names.py), and one that would be too long for a file system is named
by a hash, after which only the store itself can tell the key.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec

from holdfast.kernel.codec import blame_stack
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.layout import OneFile
from holdfast.kernel.names import path_component
from holdfast.kernel.space import Space
from holdfast.stores.files.disk import Spot

WRONG_DOCUMENT = (
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    IndexError,
    ArithmeticError,
    RecursionError,
)
"""What reading a document that is no record raises."""


class Unsound(Exception):
    """A file cannot be read as what its layout says. Never leaves the store."""

    def __init__(self, spot: Spot, layout: OneFile[Any], space: Space[Any], why: str) -> None:
        super().__init__(f"{spot.path}: {why}")
        self.space = space
        self.spot = spot
        self.layout = layout
        self.why = why


class Sheet:
    """A file as it was read or written: its bytes, and its JSON, which is parsed when it is first
    asked for. No bytes: there is no file.
    """

    __slots__ = ("_value", "data")

    def __init__(self, data: bytes | None) -> None:
        self.data = data
        self._value: Any = None

    @property
    def value(self) -> Any:
        """Raises ValueError for bytes that are no JSON."""
        if self._value is None and self.data is not None:
            self._value = parse(self.data)
        return self._value


NO_FILE = Sheet(None)


def parse(data: bytes) -> Any:
    """The JSON of a file's bytes. Raises ValueError."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        blame_stack(error)
        raise ValueError(f"it is no JSON: {error}" if data.strip() else "it is empty") from None


def documents_of(layout: OneFile[Any], sheet: Sheet) -> dict[str, Any]:
    """The documents of a space by key, damaged ones included. Raises ValueError when its part of
    the file is none.
    """
    if sheet.data is None:
        return {}
    value = sheet.value
    if layout.part is not None:
        if not isinstance(value, dict):
            raise ValueError("it is not a JSON object")
        if layout.part not in value:
            return {}
        value = value[layout.part]
    try:
        pairs = list(layout.spread(value))
        found = dict(pairs)
    except WRONG_DOCUMENT as error:
        blame_stack(error)
        raise ValueError(
            f"{layout.part or 'what it holds'} is not what it should be ({error})"
        ) from None
    if len(found) < len(pairs) or not all(isinstance(key, str) for key in found):
        raise ValueError(f"{layout.part or 'what it holds'} names a record twice, or by no text")
    return found


def with_documents(layout: OneFile[Any], value: Any, documents: Mapping[str, Any]) -> Any:
    """A file's JSON with a space's documents in it; what is nobody's part stays."""
    gathered = layout.gather({key: documents[key] for key in sorted(documents)})
    return gathered if layout.part is None else {**(value or {}), layout.part: gathered}


def render(value: Any) -> bytes:
    """A value as a file has it."""
    return _formatted(value) + b"\n"


def as_member(key: str, value: Any) -> bytes:
    """A value as it stands under a key in an object that is the file."""
    # No text in JSON has a line break of its own.
    return b"  " + msgspec.json.encode(key) + b": " + _formatted(value).replace(b"\n", b"\n  ")


def members(parts: Sequence[bytes]) -> bytes:
    """The file of an object whose members are given as `as_member` writes them, sorted: what
    `render` makes of it all.
    """
    return b"".join((b"{\n", b",\n".join(parts), b"\n}\n")) if parts else render({})


def _formatted(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value, order="sorted"), indent=2)


NAME_BYTES_MAX = 160
"""Longest a key may be in a file's name. With what stands around it, the endings of copies
included, a name stays below the 255 bytes of common file systems.
"""

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_HASHED = "%~"


def name_of(key: str) -> str:
    """The name of a key: one component of a path, never `.` or `..`, the same for no other key."""
    name = key if _PLAIN.match(key) else path_component(key)
    return name if len(name) <= NAME_BYTES_MAX else _HASHED + sha256(key.encode()).hexdigest()


def key_of(name: str, known: Iterable[str]) -> str | None:
    """The key of a name; None for a name that no key has. The key of a hash is looked for among
    those `known`.
    """
    if name.startswith(_HASHED):
        return next((key for key in known if name_of(key) == name), None)
    key = name if _PLAIN.match(name) else unquote(name, errors="replace")
    return key if key and name_of(key) == name else None


def hashed(name: str) -> bool:
    """Can only the store tell whose name this is?"""
    return name.startswith(_HASHED)


class Pattern(NamedTuple):
    """The name of a layout taken apart at its key: `base/prefix{key}suffix/rest`, where base and
    rest may be empty.
    """

    base: str
    prefix: str
    suffix: str
    rest: str

    def path(self, key: str) -> str:
        """The path of a key's file below the base."""
        return self.beneath(self.component(key))

    def component(self, key: str) -> str:
        """The name of the base folder that stands for a key."""
        return f"{self.prefix}{name_of(key)}{self.suffix}"

    def beneath(self, component: str) -> str:
        """The path of the file that such a name leads to."""
        return f"{component}/{self.rest}" if self.rest else component

    def within(self, path: str) -> str | None:
        """What stands for the key in such a path; None where it is no path of this pattern."""
        component, _, rest = path.partition("/")
        return self.inner(component) if rest == self.rest else None

    def inner(self, component: str) -> str | None:
        """What stands for the key in a name of the base folder; None where it is no name of this
        pattern.
        """
        if not (component.startswith(self.prefix) and component.endswith(self.suffix)):
            return None
        return component[len(self.prefix) : len(component) - len(self.suffix)] or None


@lru_cache(maxsize=256)
def pattern_of(name: str) -> Pattern:
    """Take a layout's name apart. Raises InvalidValue for one without exactly one `{key}`, or that
    leaves its folder.
    """
    parts = name.split("/")
    keyed = [number for number, part in enumerate(parts) if "{key}" in part]
    if name.count("{key}") != 1 or not safe(name):
        raise InvalidValue(
            f"{name!r} cannot name the files of a space: it needs {{key}} once, and no way out of "
            "its folder"
        )
    at = keyed[0]
    prefix, _, suffix = parts[at].partition("{key}")
    return Pattern("/".join(parts[:at]), prefix, suffix, "/".join(parts[at + 1 :]))


def checked(name: str) -> str:
    """Return the name of a layout's one file. Raises InvalidValue for one that leaves its
    folder.
    """
    if safe(name):
        return name
    raise InvalidValue(f"{name!r} cannot name the file of a space: it leaves its folder")


def safe(name: str) -> bool:
    """Does a relative path stay below where it starts?"""
    return (
        not name.startswith("/") and "\0" not in name and not {"", ".", ".."} & set(name.split("/"))
    )
