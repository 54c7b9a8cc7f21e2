"""How the files store lays out a space, which its domain declares. Others are kept elsewhere."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from msgspec import Struct

from holdfast.kernel.codec import Record

R = TypeVar("R", bound=Record)

Document = dict[str, Any]


class Wire(Struct, Generic[R], frozen=True):
    """The form of a record in a file. `read` raises ValueError, TypeError or KeyError, and keeps
    unknown fields in the record for `write`: they are another program's.
    """

    write: Callable[[R], Document]
    read: Callable[[str, Document], R]
    aside: Callable[[R], Document | None] = lambda _: None
    """What the file has no place for, as programs that share it refuse unknown fields. It is kept
    in the store's own database and commits with the record; None: nothing.
    """
    rejoin: Callable[[R, Document], R] = lambda record, _: record
    """The record with what was kept aside, which may be that of another record of the key."""


class OneFile(Struct, Generic[R], frozen=True):
    """All records of a space in one JSON file, which may be shared with other spaces.

    `part` names this space's member of the file's object; None: the whole object. `spread` splits
    that value into documents by key, and `gather` joins them. Other members are kept.
    """

    folder: str
    """The name under which settings can move the folder."""
    name: str
    wire: Wire[R]
    part: str | None = None
    spread: Callable[[Any], Iterable[tuple[str, Document]]] = lambda value: value.items()
    gather: Callable[[Mapping[str, Document]], Any] = dict
    lock: str | None = None
    """The file in that folder that every program of this layout locks by flock for a change."""


class FilePerRecord(Struct, Generic[R], frozen=True):
    """One JSON file for each record. `name` has `{key}` once, as in `{key}/record.json`."""

    folder: str
    name: str
    wire: Wire[R]
    lock: str | None = None
    """As in `OneFile`."""


class Sign(Struct, Generic[R], frozen=True):
    """A file that shows a volatile record, which is stored elsewhere, to people."""

    folder: str
    name: str
    show: Callable[[R], Document | None]
    """Its content; None: there is no file."""
    called: Callable[[str], str | None] = lambda key: key
    """What replaces `{key}` in the file's name; None: this record is not shown."""


Layout = OneFile[Any] | FilePerRecord[Any] | Sign[Any]
