"""The files of a store as this process last read them, read again where anything shows that they were changed."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple

from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import StoreCorrupt
from holdfast.kernel.layout import FilePerRecord, OneFile
from holdfast.kernel.space import R, Space
from holdfast.stores.files import naming
from holdfast.stores.files.disk import Disk, Signature, Spot, Unfit, signature_of
from holdfast.stores.files.drawer import Drawer, Keys, entry_of
from holdfast.stores.files.folders import Folders
from holdfast.stores.files.pile import Entry, Pile
from holdfast.stores.files.redo import Change, content_of
from holdfast.stores.files.sheet import NO_FILE, Sheet, Unsound, documents_of

Pending = Mapping[Spot, Change]


class _Seen(NamedTuple):
    signature: Signature | None
    """None when the file was so young that this proves nothing."""
    sheet: Sheet


class _Drawn(NamedTuple):
    sheet: Sheet
    pile: Pile[Any]


class Cabinet:
    """What was read, by file and by space. Everything in it is replaced and never changed, so threads share it."""

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
        if known is not None and known.signature is not None and known.signature == signature_of(path):
            return known.sheet
        try:
            found = self.disk.read(spot)
        except Unfit as error:
            raise Unsound(spot, layout, space, str(error)) from None
        if found is None:
            return NO_FILE
        same = known is not None and known.sheet.data == found.data
        sheet = known.sheet if known is not None and same else _sheet(spot, layout, space, found.data)
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
            entries[key] = old if old is not None and _same(old.document, document) else Entry(document)
        pile = Pile(space, layout.wire, entries)
        self._drawn[space] = _Drawn(sheet, pile)
        return sheet, pile

    def wrote(self, spot: Spot, sheet: Sheet, drawn: Mapping[Space[Any], Pile[Any]]) -> None:
        """Remember what this process has just put in a file's place, with nobody else at the latch."""
        self._sheets[spot.path] = _Seen(signature_of(spot.path), sheet)
        for space, pile in drawn.items():
            self._drawn[space] = _Drawn(sheet, pile)

    def wrote_card(self, space: Space[R], layout: FilePerRecord[R], key: str, entry: Entry[R] | None) -> None:
        """The same of a file for one record; None: it is gone."""
        self._drawer(space, layout).wrote(key, entry)

    def card(self, space: Space[R], layout: FilePerRecord[R], key: str, pending: Pending) -> Entry[R] | None:
        """The record in the file of a key. Raises StoreUnavailable."""
        if pending and (spot := self.spot_of(layout, key)) in pending:
            return _written(space, key, pending[spot])
        return self._drawer(space, layout).one(key)

    def cards(self, space: Space[R], layout: FilePerRecord[R], pending: Pending, known_keys: Keys) -> Pile[R]:
        """The records of all files of a space. Raises StoreUnavailable."""
        pile = self._drawer(space, layout).all(known_keys)
        if not pending:
            return pile
        pattern = naming.pattern_of(layout.name)
        folder = self.folders.of(layout.folder) / pattern.base
        written: dict[str, Entry[R] | None] = {}
        for spot, change in pending.items():
            inner = pattern.within(spot.name) if spot.folder == folder else None
            key = naming.key_of(inner, known_keys() if naming.hashed(inner) else ()) if inner else None
            if key is not None:
                written[key] = _written(space, key, change)
        return pile.changed(written)

    def refuse_gone(self, layout: FilePerRecord[Any], pending: Pending, known_keys: Keys) -> None:
        """Raise StoreCorrupt when the folder of a space is gone that has records: most likely it is not mounted."""
        folder = self.folders.of(layout.folder) / naming.pattern_of(layout.name).base
        if folder.is_dir() or any(spot.folder == folder for spot in pending) or not any(True for _ in known_keys()):
            return
        raise StoreCorrupt(
            f"{folder} is gone, with the records in it: mount it or put it back, or make the folder to go on without them",
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
        """The file that other programs of a layout lock around each change; None where there is none."""
        return None if layout.lock is None else self.folders.of(layout.folder) / layout.lock

    def forget(self) -> None:
        """Read everything anew from here on."""
        self._sheets, self._drawn, self._drawers = {}, {}, {}

    def _drawer(self, space: Space[R], layout: FilePerRecord[R]) -> Drawer[R]:
        known = self._drawers.get(space)
        if known is None:
            # Another thread may have made one meanwhile: all are to use the same.
            known = self._drawers.setdefault(space, Drawer(space, layout, self.folders.of(layout.folder), self.disk))
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
    """The entries of a space with a file for each, read when they are asked for. `still` is called after each reading, and
    raises when what was read may be of another time than the rest."""

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
