"""The files of a store as this process last read them, read again where anything shows that they
were changed.

The files of one space that has a file for each record, as this process last saw them, and which of
them to look at again.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple

from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import StoreCorrupt
from holdfast.kernel.layout import FilePerRecord, OneFile
from holdfast.kernel.limits import FILES_WATCHED_FROM
from holdfast.kernel.space import R, Space
from holdfast.stores.files import documents
from holdfast.stores.files import documents as naming
from holdfast.stores.files.disk import (
    Disk,
    Signature,
    Spot,
    Unfit,
    signature_of,
    signature_of_stat,
    unreadable,
)
from holdfast.stores.files.documents import NO_FILE, Sheet, Unsound, documents_of, parse
from holdfast.stores.files.folders import Folders
from holdfast.stores.files.record_set import Entry, Pile, damaged
from holdfast.stores.files.redo import Change, content_of
from holdfast.stores.files.watch import Watch

Keys = Callable[[], Iterable[str]]
"""Every key that the store knows of a space, to tell the keys of hashed names."""


class Drawer(Generic[R]):
    """The records of a folder. Safe for threads, which wait for each other here: what one was told
    of, no other is told again.

    A file is read again when its signature has changed. In a folder of many files the kernel tells
    whose to look at; else each is looked at, every time.
    """

    def __init__(self, space: Space[R], layout: FilePerRecord[R], folder: Path, disk: Disk) -> None:
        self._space = space
        self._disk = disk
        self._pattern = documents.pattern_of(layout.name)
        self._folder = folder / self._pattern.base
        self._mutex = threading.Lock()
        self._watch = Watch(self._folder)
        self._pile = Pile(space, layout.wire, {})
        self._news: dict[str, Entry[R] | None] = {}
        """What was learnt since the pile was made."""
        self._signatures: dict[str, Signature] = {}
        """By key; not of a file that was so young when it was read that its signature proves
        nothing.
        """
        self._keys: dict[str, str] = {}
        """By the name in the folder."""
        self._suspects: set[str] = set()
        """Names to look at. They stay until that has succeeded."""
        self._any_suspect = True

    def one(self, key: str) -> Entry[R] | None:
        """The record in the file of a key. Raises StoreUnavailable."""
        with self._mutex:
            signature = signature_of(self._spot(key).path)
            if signature is None:
                return None
            if signature == self._signatures.get(key):
                return self._known(key)
            signature, entry = self._read(key)
            if signature is not None:
                self._learn(self._pattern.component(key), key, signature, entry)
            return entry

    def all(self, known: Keys) -> Pile[R]:
        """The records of all files. Raises StoreUnavailable."""
        with self._mutex:
            told = self._told()
            if told is None:
                self._any_suspect = True
            else:
                self._suspects.update(filter(self._pattern.inner, told))
            if self._any_suspect:
                self._look_at_all(known)
            else:
                for name in list(self._suspects):
                    self._look_at(name, signature_of(self._path(name)), known)
            if self._news:
                self._pile, self._news = self._pile.changed(self._news), {}
            return self._pile

    def wrote(self, key: str, entry: Entry[R] | None) -> None:
        """This process has just put a record in its place, with nobody else at the latch; None:
        it has removed it.
        """
        with self._mutex:
            signature = None if entry is None else signature_of(self._spot(key).path)
            self._learn(self._pattern.component(key), key, signature, entry)

    def _told(self) -> set[str] | None:
        """The names that the kernel tells of. It tells of this folder alone, not of those in it."""
        if self._pattern.rest or len(self._keys) < FILES_WATCHED_FROM:
            self._watch.end()
            return None
        return self._watch.changed()

    def _look_at_all(self, known: Keys) -> None:
        seen: set[str] = set()
        for name, signature in self._listed():
            seen.add(name)
            self._look_at(name, signature, known)
        for name in self._keys.keys() - seen:
            self._look_at(name, None, known)
        self._suspects &= seen
        self._any_suspect = False

    def _look_at(self, name: str, signature: Signature | None, known: Keys) -> None:
        key = self._keys.get(name) or self._key_of(name, known)
        if key is not None and (signature is None or signature != self._signatures.get(key)):
            signature, entry = (None, None) if signature is None else self._read(key)
            self._learn(name, key, signature, entry)
        self._suspects.discard(name)
        if key is None and documents.hashed(name.removeprefix(self._pattern.prefix)):
            # Only the store can tell whose it is, and may be about to.
            self._suspects.add(name)

    def _key_of(self, name: str, known: Keys) -> str | None:
        inner = self._pattern.inner(name) or ""
        return documents.key_of(inner, known() if documents.hashed(inner) else ())

    def _learn(
        self, name: str, key: str, signature: Signature | None, entry: Entry[R] | None
    ) -> None:
        if entry is not self._known(key):
            self._news[key] = entry
        if entry is None:
            self._keys.pop(name, None)
        else:
            self._keys[name] = key
        if entry is None or signature is None:
            self._signatures.pop(key, None)
        else:
            self._signatures[key] = signature

    def _known(self, key: str) -> Entry[R] | None:
        return self._news[key] if key in self._news else self._pile.entries.get(key)

    def _read(self, key: str) -> tuple[Signature | None, Entry[R] | None]:
        try:
            found = self._disk.read(self._spot(key))
        except Unfit as error:
            return None, Entry(None, error=damaged(self._space, key, str(error), malformed=True))
        if found is None:
            return None, None
        return found.signature if found.sure else None, entry_of(self._space, key, found.data)

    def _listed(self) -> Iterator[tuple[str, Signature | None]]:
        """Every name of the folder that may be a record's, and the signature of its file."""
        try:
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    if self._pattern.inner(entry.name):
                        yield entry.name, self._signature(entry)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise unreadable(self._folder, error) from None

    def _signature(self, entry: "os.DirEntry[str]") -> Signature | None:
        if self._pattern.rest:
            return signature_of(self._path(entry.name))
        try:
            return signature_of_stat(entry.stat(follow_symlinks=False))
        except FileNotFoundError:
            return None

    def _path(self, name: str) -> str:
        return f"{self._folder}/{self._pattern.beneath(name)}"

    def _spot(self, key: str) -> Spot:
        return Spot(self._folder, self._pattern.path(key))


def entry_of(space: Space[R], key: str, data: bytes) -> Entry[R]:
    """What stands in the file of a record."""
    try:
        return Entry(parse(data))
    except ValueError as error:
        return Entry(None, error=damaged(space, key, str(error), malformed=True))


Pending = Mapping[Spot, Change]


class _Seen(NamedTuple):
    signature: Signature | None
    """None when the file was so young that this proves nothing."""
    sheet: Sheet


class _Drawn(NamedTuple):
    sheet: Sheet
    pile: Pile[Any]


class Cabinet:
    """What was read, by file and by space. Everything in it is replaced and never changed, so
    threads share it.
    """

    def __init__(self, folders: Folders, disk: Disk) -> None:
        self.folders = folders
        self.disk = disk
        self._sheets: dict[Path, _Seen] = {}
        self._drawn: dict[Space[Any], _Drawn] = {}
        self._drawers: dict[Space[Any], Drawer[Any]] = {}

    def sheet(self, space: Space[Any], layout: OneFile[Any], pending: Pending) -> Sheet:
        """The file of a layout. Raises Unsound for one that is no JSON, or StoreUnavailable."""
        spot = self.spot(layout)
        if spot in pending:
            try:
                data = content_of(self.disk, pending[spot])
            except Unfit as error:
                raise Unsound(spot, layout, space, str(error)) from None
            return NO_FILE if data is None else _sheet(spot, layout, space, data)
        path = spot.path
        known = self._sheets.get(path)
        if (
            known is not None
            and known.signature is not None
            and known.signature == signature_of(path)
        ):
            return known.sheet
        try:
            found = self.disk.read(spot)
        except Unfit as error:
            raise Unsound(spot, layout, space, str(error)) from None
        if found is None:
            return NO_FILE
        same = known is not None and known.sheet.data == found.data
        sheet = (
            known.sheet if known is not None and same else _sheet(spot, layout, space, found.data)
        )
        self._sheets[path] = _Seen(found.signature if found.sure else None, sheet)
        return sheet

    def drawn(self, space: Space[R], layout: OneFile[R], pending: Pending) -> tuple[Sheet, Pile[R]]:
        """The file of a space, and its records. Raises Unsound or StoreUnavailable."""
        sheet = self.sheet(space, layout, pending)
        known = self._drawn.get(space)
        if known is not None and known.sheet is sheet:
            return known
        try:
            documents = documents_of(layout, sheet)
        except ValueError as error:
            raise Unsound(self.spot(layout), layout, space, str(error)) from None
        # What did not change keeps what was worked out of it.
        before = {} if known is None else known.pile.entries
        entries: dict[str, Entry[R]] = {}
        for key, document in documents.items():
            old = before.get(key)
            entries[key] = (
                old if old is not None and _same(old.document, document) else Entry(document)
            )
        pile = Pile(space, layout.wire, entries)
        self._drawn[space] = _Drawn(sheet, pile)
        return sheet, pile

    def wrote(self, spot: Spot, sheet: Sheet, drawn: Mapping[Space[Any], Pile[Any]]) -> None:
        """Remember what this process has just put in a file's place, with nobody else at the
        latch.
        """
        self._sheets[spot.path] = _Seen(signature_of(spot.path), sheet)
        for space, pile in drawn.items():
            self._drawn[space] = _Drawn(sheet, pile)

    def wrote_card(
        self, space: Space[R], layout: FilePerRecord[R], key: str, entry: Entry[R] | None
    ) -> None:
        """The same of a file for one record; None: it is gone."""
        self._drawer(space, layout).wrote(key, entry)

    def card(
        self, space: Space[R], layout: FilePerRecord[R], key: str, pending: Pending
    ) -> Entry[R] | None:
        """The record in the file of a key. Raises StoreUnavailable."""
        if pending and (spot := self.spot_of(layout, key)) in pending:
            return _written(space, key, pending[spot])
        return self._drawer(space, layout).one(key)

    def cards(
        self, space: Space[R], layout: FilePerRecord[R], pending: Pending, known_keys: Keys
    ) -> Pile[R]:
        """The records of all files of a space. Raises StoreUnavailable."""
        pile = self._drawer(space, layout).all(known_keys)
        if not pending:
            return pile
        pattern = naming.pattern_of(layout.name)
        folder = self.folders.of(layout.folder) / pattern.base
        written: dict[str, Entry[R] | None] = {}
        for spot, change in pending.items():
            inner = pattern.within(spot.name) if spot.folder == folder else None
            key = (
                naming.key_of(inner, known_keys() if naming.hashed(inner) else ())
                if inner
                else None
            )
            if key is not None:
                written[key] = _written(space, key, change)
        return pile.changed(written)

    def refuse_gone(self, layout: FilePerRecord[Any], pending: Pending, known_keys: Keys) -> None:
        """Raise StoreCorrupt when the folder of a space is gone that has records: most likely it
        is not mounted.
        """
        folder = self.folders.of(layout.folder) / naming.pattern_of(layout.name).base
        if (
            folder.is_dir()
            or any(spot.folder == folder for spot in pending)
            or not any(True for _ in known_keys())
        ):
            return
        raise StoreCorrupt(
            f"{folder} is gone, with the records in it: mount it or put it back, or make the "
            "folder to go on without them",
            path=str(folder),
            aside=None,
            restored=False,
            why="it is gone",
        )

    def spot(self, layout: OneFile[Any]) -> Spot:
        """Where a layout's one file is."""
        return Spot(self.folders.of(layout.folder), naming.checked(layout.name))

    def spot_of(self, layout: FilePerRecord[Any], key: str) -> Spot:
        """Where the file of a key is."""
        pattern = naming.pattern_of(layout.name)
        return Spot(self.folders.of(layout.folder) / pattern.base, pattern.path(key))

    def lock_of(self, layout: OneFile[Any] | FilePerRecord[Any]) -> Path | None:
        """The file that other programs of a layout lock around each change; None where there is
        none.
        """
        return None if layout.lock is None else self.folders.of(layout.folder) / layout.lock

    def forget(self) -> None:
        """Read everything anew from here on."""
        self._sheets, self._drawn, self._drawers = {}, {}, {}

    def _drawer(self, space: Space[R], layout: FilePerRecord[R]) -> Drawer[R]:
        known = self._drawers.get(space)
        if known is None:
            # Another thread may have made one meanwhile: all are to use the same.
            known = self._drawers.setdefault(
                space, Drawer(space, layout, self.folders.of(layout.folder), self.disk)
            )
        return known


class SheetSource(Generic[R]):
    """The entries of a space that has one file."""

    def __init__(self, pile: Pile[R]) -> None:
        self._pile = pile

    def one(self, key: str) -> Entry[R] | None:
        """The entry under a key."""
        return self._pile.entries.get(key)

    def all(self) -> Pile[R]:
        """Every entry."""
        return self._pile


class CardSource(Generic[R]):
    """The entries of a space with a file for each, read when they are asked for. `still` is
    called after each reading, and raises when what was read may be of another time than the
    rest.
    """

    def __init__(
        self,
        cabinet: Cabinet,
        space: Space[R],
        layout: FilePerRecord[R],
        pending: Pending,
        keys: Keys,
        still: Callable[[], None],
    ) -> None:
        self._cabinet = cabinet
        self._space = space
        self._layout = layout
        self._pending = pending
        self._keys = keys
        self._still = still
        self._all: Pile[R] | None = None

    def one(self, key: str) -> Entry[R] | None:
        """The entry under a key."""
        if self._all is not None:
            return self._all.entries.get(key)
        entry = self._cabinet.card(self._space, self._layout, key, self._pending)
        self._still()
        return entry

    def all(self) -> Pile[R]:
        """Every entry."""
        if self._all is None:
            found = self._cabinet.cards(self._space, self._layout, self._pending, self._keys)
            self._still()
            self._all = found
        return self._all


def _sheet(spot: Spot, layout: OneFile[Any], space: Space[Any], data: bytes) -> Sheet:
    try:
        sheet = Sheet(data)
        sheet.value  # noqa: B018 - it is no file of ours if that cannot be read
    except ValueError as error:
        raise Unsound(spot, layout, space, str(error)) from None
    return sheet


def _written(space: Space[R], key: str, change: Change) -> Entry[R] | None:
    """A record whose file may not be there yet."""
    return None if change.data is None else entry_of(space, key, change.data)


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON, and not only to Python, for which 1 is True and 1.0."""
    return one is other or (one == other and to_json(one) == to_json(other))
