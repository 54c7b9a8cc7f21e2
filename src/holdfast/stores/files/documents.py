"""JSON files: their documents, and the restoration of a damaged one.

A file for people is JSON, indented by two, with sorted keys. It holds one record's document or the
documents of several.
"""

import contextlib
import os
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from holdfast.kernel.codec import raise_if_stack_full
from holdfast.kernel.errors import StoreCorrupt
from holdfast.kernel.layout import OneFile
from holdfast.kernel.space import Space
from holdfast.stores.files.disk import (
    NO_LINKS,
    Disk,
    FileContent,
    Location,
    UnusableFile,
    backup_of,
)
from holdfast.system.access import match_owner

GONE = "it is gone"
"""What is wrong with a file that was written once, and does not exist now."""

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

    __slots__ = ("_value", "data", "is_ours")

    def __init__(self, data: bytes | None, *, is_ours: bool = False) -> None:
        self.data = data
        self.is_ours = is_ours
        """The file is known to be `members` of its entries, which are rendered."""
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
        raise_if_stack_full(error)
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
        raise_if_stack_full(error)
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


def _formatted(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value, order="sorted"), indent=2)


def restore_file(disk: Disk, damage: DamagedFile, now: datetime) -> StoreCorrupt | None:
    """At the latch: restore a damaged file from its previous version. Return the error that its
    reader must see once; None when the file turns out to be sound.

    Changes since the previous version are lost from the records; the damaged file stays, under
    another name. Without a sound previous version nothing is changed, and the error says so. Raises
    OSError or StoreUnavailable.
    """
    location, layout = damage.location, damage.layout
    # A person's editor may be in the middle of saving it.
    if disk.retry_until_found(lambda: _sound(disk, location, layout)) is not None:
        return None
    kept = location.sibling(backup_of)
    previous = None if location.path.is_symlink() else _sound(disk, kept, layout)
    if previous is None:
        return _lost(damage, kept)
    # Under a name of its own, because nothing can be staged over a folder.
    restored = location.sibling(lambda name: f".{name}.restored")
    disk.stage(restored, previous.data)
    disk.place(restored, keep=False)
    match_owner(restored.path, kept.path)
    aside = _set_aside(location, now)
    os.replace(restored.path, location.path)
    disk.settle(location)
    where = f"kept as {aside}" if aside else "not to be found"
    return StoreCorrupt(
        f"{location.path} was damaged ({damage.why}). It was restored from {kept.path}, the "
        f"version before the last change, and the damaged file is {where}: compare the two, then "
        "go on. This is reported once",
        path=str(location.path),
        aside=aside,
        restored=True,
        why=damage.why,
    )


def _lost(damage: DamagedFile, kept: Location) -> StoreCorrupt:
    path = damage.location.path
    if damage.why != GONE:
        advice = (
            f"and there is no sound {kept.path.name} to restore it from: correct it, or move it "
            "away to continue without its records"
        )
    elif damage.location.folder.is_dir():
        advice = (
            f"and so is {kept.path.name}: its records are lost. From now on it counts as empty, "
            "without another warning"
        )
    else:
        advice = (
            "with its folder: mount it or put it back, or make an empty folder to continue without "
            "its records"
        )
    return StoreCorrupt(
        f"{path} is damaged ({damage.why}), {advice}",
        path=str(path),
        aside=None,
        restored=False,
        why=damage.why,
    )


def _sound(disk: Disk, location: Location, layout: OneFile[Any]) -> FileContent | None:
    try:
        found = disk.read(location)
        if found is not None:
            documents_of(layout, ParsedFile(found.data))
        return found
    except (UnusableFile, ValueError):
        return None


def _set_aside(location: Location, now: datetime) -> str | None:
    """Keep a damaged file under another name. By a link, so that its place is never empty."""
    stem = f"{location.path}.corrupt-{now:%Y%m%dT%H%M%SZ}"
    aside = next(
        name
        for name in (stem, *(f"{stem}-{n}" for n in range(2, 1000)))
        if not os.path.lexists(name)
    )
    with contextlib.suppress(FileNotFoundError):
        if location.path.is_dir():
            os.rename(location.path, aside)
            return aside
        try:
            os.link(location.path, aside, follow_symlinks=False)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            # Killed before the next rename, the file is missing, and is restored all the same.
            os.rename(location.path, aside)
        return aside
    return None
