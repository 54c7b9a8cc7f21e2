"""JSON files and their names.

A file for people is JSON, indented by two, with sorted keys. It holds one record's document or the
documents of several. The name of a record's file stands for its key: a plain id is its own name, so
that folders of other programs are read as they are; any other key is percent-encoded
(kernel/names.py); a key that is too long for a file system is named by a hash, which only the
store can map back to the key.
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
from holdfast.stores.files.disk import Location

WRONG_DOCUMENT = (
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    IndexError,
    ArithmeticError,
    RecursionError,
)
"""What a layout's functions raise for a document that they cannot read."""


class DamagedFile(Exception):
    """A file of several records is not what its layout says. Never leaves the store."""

    def __init__(
        self, location: Location, layout: OneFile[Any], space: Space[Any], why: str
    ) -> None:
        super().__init__(f"{location.path}: {why}")
        self.space = space
        self.location = location
        self.layout = layout
        self.why = why


class ParsedFile:
    """The bytes of a file, None when there is no file, and their JSON, parsed when first needed."""

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


NO_FILE = ParsedFile(None)


def parse(data: bytes) -> Any:
    """Parse a file's bytes. Raises ValueError."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        blame_stack(error)
        raise ValueError(f"it is no JSON: {error}" if data.strip() else "it is empty") from None


def documents_of(layout: OneFile[Any], file: ParsedFile) -> dict[str, Any]:
    """The documents of a space by key, damaged ones included. Raises ValueError when the space's
    part of the file cannot be taken apart.
    """
    if file.data is None:
        return {}
    value = file.value
    if layout.part is not None:
        if not isinstance(value, dict):
            raise ValueError("it is not a JSON object")
        if layout.part not in value:
            return {}
        value = value[layout.part]
    part = layout.part or "its content"
    try:
        pairs = list(layout.spread(value))
        found = dict(pairs)
    except WRONG_DOCUMENT as error:
        blame_stack(error)
        raise ValueError(f"{part} has an unexpected form ({error})") from None
    if len(found) < len(pairs) or not all(isinstance(key, str) for key in found):
        raise ValueError(f"{part} has a record without a name, or a name twice")
    return found


def with_documents(layout: OneFile[Any], value: Any, documents: Mapping[str, Any]) -> Any:
    """A file's JSON with the documents of a space replaced. Members of no space stay."""
    gathered = layout.gather({key: documents[key] for key in sorted(documents)})
    return gathered if layout.part is None else {**(value or {}), layout.part: gathered}


def render(value: Any) -> bytes:
    """A value as the content of a file."""
    return _formatted(value) + b"\n"


def as_member(key: str, value: Any) -> bytes:
    """A value as a member of the object that a file is."""
    # JSON text has no line break inside a string, so each one is the formatter's.
    return b"  " + msgspec.json.encode(key) + b": " + _formatted(value).replace(b"\n", b"\n  ")


def members(parts: Sequence[bytes]) -> bytes:
    """The file of rendered and sorted members: equal to `render` of the whole object."""
    return b"".join((b"{\n", b",\n".join(parts), b"\n}\n")) if parts else render({})


def _formatted(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value, order="sorted"), indent=2)


NAME_BYTES_MAX = 160
"""Longest encoded key in a file's name. With a layout's prefix and suffix and the endings of
copies, the name stays below the 255 bytes of common file systems.
"""

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_HASHED = "%~"


def name_of(key: str) -> str:
    """The name of a key: one path component, never `.` or `..`, unique to the key."""
    name = key if _PLAIN.match(key) else path_component(key)
    return name if len(name) <= NAME_BYTES_MAX else _HASHED + sha256(key.encode()).hexdigest()


def key_of(name: str, known: Iterable[str]) -> str | None:
    """The key of a name; None for a name of no key. The key of a hash is looked up in `known`."""
    if is_hashed(name):
        return next((key for key in known if name_of(key) == name), None)
    key = name if _PLAIN.match(name) else unquote(name, errors="replace")
    return key if key and name_of(key) == name else None


def is_hashed(name: str) -> bool:
    return name.startswith(_HASHED)


class Pattern(NamedTuple):
    """A layout's file name, split at its key: `base/prefix{key}suffix/rest`. Base and rest may be
    empty. The component is the part between the slashes that holds the key.
    """

    base: str
    prefix: str
    suffix: str
    rest: str

    def path(self, key: str) -> str:
        """The path of a key's file below the base."""
        return self.path_of_component(self.component(key))

    def component(self, key: str) -> str:
        return f"{self.prefix}{name_of(key)}{self.suffix}"

    def path_of_component(self, component: str) -> str:
        return f"{component}/{self.rest}" if self.rest else component

    def name_in_path(self, path: str) -> str | None:
        """The name of the key in a path below the base; None when the path does not match."""
        component, _, rest = path.partition("/")
        return self.name_in(component) if rest == self.rest else None

    def name_in(self, component: str) -> str | None:
        """The name of the key in a component; None when the component does not match."""
        if not (component.startswith(self.prefix) and component.endswith(self.suffix)):
            return None
        return component[len(self.prefix) : len(component) - len(self.suffix)] or None


@lru_cache(maxsize=256)
def pattern_of(name: str) -> Pattern:
    """Split a name. Raises InvalidValue unless it has `{key}` once and stays below its folder."""
    if name.count("{key}") != 1 or not _is_below(name):
        raise InvalidValue(
            f"{name!r} cannot name the files of a space: it needs {{key}} once, and must stay "
            "below its folder"
        )
    parts = name.split("/")
    at = next(number for number, part in enumerate(parts) if "{key}" in part)
    prefix, _, suffix = parts[at].partition("{key}")
    return Pattern("/".join(parts[:at]), prefix, suffix, "/".join(parts[at + 1 :]))


def check_file_name(name: str) -> str:
    """Return the name of a layout's file. Raises InvalidValue for one that leaves its folder."""
    if _is_below(name):
        return name
    raise InvalidValue(f"{name!r} cannot name the file of a space: it leaves its folder")


def _is_below(name: str) -> bool:
    return (
        not name.startswith("/") and "\0" not in name and not {"", ".", ".."} & set(name.split("/"))
    )
