"""Keys as names of files, and back.

A key that is a plain id is its own name, so that folders of other programs are read as they are. Every other is encoded
(kernel/names.py), and one that would be too long for a file system is named by a hash, after which only the store itself can
tell the key.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import unquote

from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.names import path_component

NAME_BYTES_MAX = 160
"""Longest a key may be in a file's name. With what stands around it, the endings of copies included, a name stays below the
255 bytes of common file systems."""

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_HASHED = "%~"


def name_of(key: str) -> str:
    """The name of a key: one component of a path, never `.` or `..`, the same for no other key."""
    name = key if _PLAIN.match(key) else path_component(key)
    return name if len(name) <= NAME_BYTES_MAX else _HASHED + sha256(key.encode()).hexdigest()


def key_of(name: str, known: Iterable[str]) -> str | None:
    """The key of a name; None for a name that no key has. The key of a hash is looked for among those `known`."""
    if name.startswith(_HASHED):
        return next((key for key in known if name_of(key) == name), None)
    key = name if _PLAIN.match(name) else unquote(name, errors="replace")
    return key if key and name_of(key) == name else None


def hashed(name: str) -> bool:
    """Can only the store tell whose name this is?"""
    return name.startswith(_HASHED)


class Pattern(NamedTuple):
    """The name of a layout taken apart at its key: `base/prefix{key}suffix/rest`, where base and rest may be empty."""

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
        """What stands for the key in a name of the base folder; None where it is no name of this pattern."""
        if not (component.startswith(self.prefix) and component.endswith(self.suffix)):
            return None
        return component[len(self.prefix) : len(component) - len(self.suffix)] or None


@lru_cache(maxsize=256)
def pattern_of(name: str) -> Pattern:
    """Take a layout's name apart. Raises InvalidValue for one without exactly one `{key}`, or that leaves its folder."""
    parts = name.split("/")
    keyed = [number for number, part in enumerate(parts) if "{key}" in part]
    if name.count("{key}") != 1 or not safe(name):
        raise InvalidValue(f"{name!r} cannot name the files of a space: it needs {{key}} once, and no way out of its folder")
    at = keyed[0]
    prefix, _, suffix = parts[at].partition("{key}")
    return Pattern("/".join(parts[:at]), prefix, suffix, "/".join(parts[at + 1 :]))


def checked(name: str) -> str:
    """Return the name of a layout's one file. Raises InvalidValue for one that leaves its folder."""
    if safe(name):
        return name
    raise InvalidValue(f"{name!r} cannot name the file of a space: it leaves its folder")


def safe(name: str) -> bool:
    """Does a relative path stay below where it starts?"""
    return not name.startswith("/") and "\0" not in name and not {"", ".", ".."} & set(name.split("/"))
