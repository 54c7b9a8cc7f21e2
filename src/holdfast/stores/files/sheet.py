"""A file that holds all records of a space, or of several: its JSON, the documents in it, and the same written again."""

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.kernel.codec import blame_stack
from holdfast.kernel.layout import OneFile
from holdfast.kernel.space import Space
from holdfast.stores.files.disk import Spot
from holdfast.stores.files.pile import WRONG_DOCUMENT


class Unsound(Exception):
    """A file cannot be read as what its layout says. Never leaves the store."""

    def __init__(self, spot: Spot, layout: OneFile[Any], space: Space[Any], why: str) -> None:
        super().__init__(f"{spot.path}: {why}")
        self.space = space
        self.spot = spot
        self.layout = layout
        self.why = why


class Sheet:
    """A file as it was read or written: its bytes, and its JSON, which is parsed when it is first asked for. No bytes: there is
    no file."""

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
    """The documents of a space by key, damaged ones included. Raises ValueError when its part of the file is none."""
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
        raise ValueError(f"{layout.part or 'what it holds'} is not what it should be ({error})") from None
    if len(found) < len(pairs) or not all(isinstance(key, str) for key in found):
        raise ValueError(f"{layout.part or 'what it holds'} names a record twice, or by no text")
    return found


def with_documents(layout: OneFile[Any], value: Any, documents: Mapping[str, Any]) -> Any:
    """A file's JSON with a space's documents in it; what is nobody's part stays."""
    gathered = layout.gather({key: documents[key] for key in sorted(documents)})
    return gathered if layout.part is None else {**(value or {}), layout.part: gathered}
