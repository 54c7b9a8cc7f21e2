"""How a space lies in plain files, where a store keeps it in such: whose folder, which files, and
the form of a record in them.

Declared by the domain beside its space, so that the files store needs to know no domain. Records
without a layout have no place in a folder that people read, and such a store keeps them elsewhere.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from msgspec import Struct

from holdfast.kernel.codec import Record

R = TypeVar("R", bound=Record)

Document = dict[str, Any]


class Wire(Struct, Generic[R], frozen=True):
    """The form of one record in a file.

    `write` makes the document of a record. `read` makes the record under a key of a document, and
    raises ValueError (that of msgspec included), TypeError or KeyError for one that is none. What
    `read` does not know it must keep in the record for `write`: another program's fields survive.
    """

    write: Callable[[R], Document]
    read: Callable[[str, Document], R]


class OneFile(Struct, Generic[R], frozen=True):
    """All records of a space in one JSON file, which may be shared with other spaces.

    `part` names the member of the file's object that is this space's; None: the whole object.
    `spread` takes that value apart into documents by key, and `gather` puts it together again; by
    default it is an object of documents by key. Members of the file that are nobody's part are
    kept.
    """

    folder: str
    """What the owner of the layout is called, so that its folder can be put elsewhere."""
    name: str
    wire: Wire[R]
    part: str | None = None
    spread: Callable[[Any], Iterable[tuple[str, Document]]] = lambda value: value.items()
    gather: Callable[[Mapping[str, Document]], Any] = dict
    lock: str | None = None
    """The file in that folder whose exclusive flock every program of this layout holds around a
    change; None: there is none.
    """


class FilePerRecord(Struct, Generic[R], frozen=True):
    """One JSON file for each record; `name` has `{key}` in it once, as in `{key}.json` and
    `{key}/record.json`.
    """

    folder: str
    name: str
    wire: Wire[R]
    lock: str | None = None
    """As that of `OneFile`."""


class Sign(Struct, Generic[R], frozen=True):
    """A file for each record that shows it to people and is never read back: for volatile records,
    whose truth is elsewhere.

    `show` says what stands in it; None: nothing is to be shown, and the file goes.
    """

    folder: str
    name: str
    show: Callable[[R], Document | None]
    called: Callable[[str], str | None] = lambda key: key
    """What stands for `{key}` in the file's name; None: this record is none of those that are
    shown.
    """


Layout = OneFile[Any] | FilePerRecord[Any] | Sign[Any]
