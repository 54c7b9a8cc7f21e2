"""The redo record: what the files of a transaction are to hold, committed in the inner store before
any of them is touched.

While it is there, the files may be as before, as after or anything between; whoever is at the latch
next brings them up. A reader takes what it says for what the files hold.
"""

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.kernel.codec import Record, to_json
from holdfast.kernel.layout import FilePerRecord, OneFile
from holdfast.kernel.space import Space
from holdfast.kernel.store import ReadTx, Tx
from holdfast.stores.files.disk import Disk, Found, Spot, Unfit, temporary
from holdfast.stores.files.documents import parse, render
from holdfast.stores.files.folders import Folders

_PART_BYTES = 700_000
"""So much of a file in a row: in base64 and with what stands around it, it is below the bound of a
record. A file may be of any size.
"""

Stamp = tuple[int, int]
"""A staged file's time in nanoseconds, and its bytes."""


class Change(NamedTuple):
    """A file as it is to be. No `data`: it is to be gone. `keep`: the one before is kept beside it.

    `lock` is what other programs hold while they change that file. `before` is the digest of what
    the change was decided by: a file that is another by now was changed by such a program since,
    and stays. Empty: there was no file. None: it does not matter what is there.

    A redo record of a file with many records keeps only `delta`, the documents that are new, and
    not `data`: else each change of one record would write all of them twice. `stamp` tells the file
    that was staged, whose time is like no other's; without it, the documents are put into the file
    that is there, which may be done any number of times.
    """

    spot: Spot
    data: bytes | None
    keep: bool
    lock: Path | None = None
    before: str | None = None
    delta: bytes | None = None
    stamp: Stamp | None = None


class Part(Record, frozen=True, kw_only=True):
    """A part of a change; `more` says that the next one goes on with the same file."""

    folder: str
    name: str
    data: bytes | None
    keep: bool
    more: bool
    lock: str | None = None
    before: str | None = None
    stamp: Stamp | None = None
    """With one, `data` is a delta."""


class Mark(Record, frozen=True, kw_only=True):
    """A record of which only the revision is of interest."""


class _Parts(Space[Part]):
    """The space of parts, which are made here alone and within the bound: reading each again to be
    sure would cost as much as writing it.
    """

    def encode(self, record: Part) -> bytes:
        return to_json(record)


REDO = _Parts("files_redo", Part)
GENERATIONS = Space("files_generations", Mark)
"""By the name of a space: when its files were last changed."""


def _key(number: int) -> str:
    return f"{number:08}"


FIRST = _key(0)
"""Where a redo record begins, if there is one."""


def digest(data: bytes | None) -> str:
    """What tells the content of a file from any other; empty when there is no file."""
    return "" if data is None else blake2b(data, digest_size=16).hexdigest()


def keep(tx: Tx, folders: Folders, changes: Iterable[Change]) -> None:
    """Write the redo record of the changes, in their transaction."""
    for key, part in numbered(folders, changes):
        tx.put(REDO, key, part)


def numbered(folders: Folders, changes: Iterable[Change]) -> Iterator[tuple[str, Part]]:
    """The parts of a redo record of these changes, by their keys."""
    number = 0
    for spot, whole, kept, lock, before, delta, stamp in changes:
        locked = None if lock is None else folders.told(lock)
        data = whole if delta is None or stamp is None else delta
        stamp = None if delta is None else stamp
        pieces = (
            [None]
            if data is None
            else [data[at : at + _PART_BYTES] for at in range(0, max(len(data), 1), _PART_BYTES)]
        )
        for left, piece in zip(range(len(pieces) - 1, -1, -1), pieces, strict=True):
            part = Part(
                folder=folders.told(spot.folder),
                name=spot.name,
                data=piece,
                keep=kept,
                more=left > 0,
                lock=locked,
                before=before,
                stamp=stamp,
            )
            yield _key(number), part
            number += 1


def pending(tx: ReadTx, folders: Folders) -> dict[Spot, Change]:
    """The changes whose files may not be as they should yet."""
    found: dict[Spot, Change] = {}
    pieces: list[bytes] = []
    for _, part, _ in tx.range(REDO):
        if part.data is not None:
            pieces.append(part.data)
        if not part.more:
            spot = Spot(folders.found(part.folder), part.name)
            lock = None if part.lock is None else folders.found(part.lock)
            data = None if part.data is None else b"".join(pieces)
            whole, delta = (data, None) if part.stamp is None else (None, data)
            found[spot] = Change(spot, whole, part.keep, lock, part.before, delta, part.stamp)
            pieces = []
    return found


def resolved(disk: Disk, change: Change) -> Change:
    """The change with all that its file is to hold. Raises Unfit and StoreUnavailable."""
    return (
        change
        if change.delta is None
        else change._replace(data=content_of(disk, change), delta=None, stamp=None)
    )


def content_of(disk: Disk, change: Change) -> bytes | None:
    """What the file of a redo record is to hold; None: it is to be gone. Raises Unfit, when only
    the documents that are new are known and the file that they belong in is damaged or gone, and
    StoreUnavailable.
    """
    if change.delta is None:
        return change.data
    there = disk.read(change.spot)
    for found in (there, _read_staged(disk, change.spot)):
        if found is not None and (found.signature.mtime_ns, found.signature.bytes) == change.stamp:
            return found.data
    try:
        value = None if there is None else parse(there.data)
    except ValueError as error:
        raise Unfit(str(error)) from None
    if not isinstance(value, dict):
        raise Unfit("it is gone" if there is None else "it is not a JSON object")
    new = parse(change.delta)
    gone = {key for key, document in new.items() if document is None}
    return render({key: document for key, document in {**value, **new}.items() if key not in gone})


def _read_staged(disk: Disk, spot: Spot) -> Found | None:
    head, slash, last = spot.name.rpartition("/")
    try:
        return disk.read(Spot(spot.folder, f"{head}{slash}{temporary(last)}"))
    except Unfit:
        return None


def clear(tx: Tx) -> None:
    """Remove the redo record: the files are as they should be, and stay so through a power loss."""
    number = 0
    while tx.delete(REDO, _key(number)):
        number += 1


_shadows: dict[tuple[str, int], Space[Mark]] = {}


def shadow_of(space: Space[Any]) -> Space[Mark]:
    """The inner space that keeps the revisions of a space in files, and which version of a program
    wrote it.
    """
    known = _shadows.get((space.name, space.schema_version))
    if known is None:
        upgrades = dict.fromkeys(range(1, space.schema_version), dict)
        known = Space(space.name, Mark, schema_version=space.schema_version, upgrades=upgrades)
        _shadows[space.name, space.schema_version] = known
    return known


def laid_out(space: Space[Any]) -> OneFile[Any] | FilePerRecord[Any] | None:
    """How a space lies in files; None when it does not."""
    layout = space.layout
    return layout if isinstance(layout, OneFile | FilePerRecord) and not space.volatile else None
