"""All of a files store for another, and a files store made of all of another."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from holdfast.kernel import token
from holdfast.kernel.codec import to_plain
from holdfast.kernel.errors import Collision, StoreCorrupt
from holdfast.kernel.layout import FilePerRecord, OneFile
from holdfast.kernel.limits import TRANSACT_TIMEOUT_S
from holdfast.kernel.space import Space
from holdfast.stores.copy import Contents, Kept
from holdfast.stores.files.cache import Cabinet
from holdfast.stores.files.disk import Disk, Spot
from holdfast.stores.files.documents import Unsound, render, with_documents
from holdfast.stores.files.folders import Folders
from holdfast.stores.files.maintenance import Part, all_locks, entries_of, parts_of, recover
from holdfast.stores.files.record_set import Entry
from holdfast.stores.files.redo import (
    GENERATIONS,
    REDO,
    Change,
    Mark,
    laid_out,
    numbered,
    shadow_of,
)
from holdfast.stores.files.store import FilesStore, make
from holdfast.stores.files.transaction import ADOPTED
from holdfast.stores.sqlite import copy
from holdfast.system.access import PRIVATE, Access

T = TypeVar("T")

Spaces = Sequence[Space[Any]]
Given = Mapping[str, str | Path]


def handed(store: FilesStore, spaces: Spaces, use: Callable[[Contents], T]) -> T:
    """Hand over what the store holds, files and all, as of one moment, and return what is made of
    it. Others wait meanwhile.

    Raises SchemaTooNew for an unknown space, StoreCorrupt for a damaged file; the records raise
    RecordInvalid.
    """

    def work() -> T:
        with parts_of(store) as parts:
            for part in parts:
                recover(store, part)
            with copy.contents(store.inner, _inner(spaces)) as inner:
                found = [
                    _Found(part, space, _entries(part, space))
                    for part in parts
                    for space in spaces
                    if laid_out(space)
                ]
                counts = {space.name: inner.counts.get(space.name, 0) for space in spaces}
                counts |= dict.fromkeys((one.space.name for one in found), 0)
                for one in found:
                    counts[one.space.name] += len(one.entries)
                return use(Contents(inner.era, counts, _kept(inner, found), inner.journal))

    return store.alone(work, TRANSACT_TIMEOUT_S, all_locks(store, spaces))


def fill(
    root: Path,
    all_of: Contents,
    spaces: Spaces,
    *,
    given: Given,
    boot_id: str,
    access: Access = PRIVATE,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Make a new store of the contents of another, whole or not at all, in an era beyond all of
    theirs.

    What is made is an inner store with a redo record of every file: killed behind that, the next
    change brings them up. Raises Collision when the folder holds such files, and as that of a
    SQLite store does. `ready` is called once all is written, and may raise to leave it undone.
    """
    desks = _Desks(Path(root), given)
    for space in spaces:
        _refuse_full(desks.of("default"), space)
    make(Path(root), access)
    own = desks.of("default").folders.own
    records = _inner_records(all_of, desks)
    copy.fill(
        own / "store.sqlite",
        all_of._replace(records=records),
        _inner(spaces),
        access=access,
        ready=ready,
    )
    for namespace in sorted(desks.seen):
        with closing(
            FilesStore(root, boot_id=boot_id, namespace=namespace, folders=given, access=access)
        ) as store:
            store.alone(lambda: None, TRANSACT_TIMEOUT_S)


class _Found(NamedTuple):
    """The records of a space in the files of a namespace."""

    part: Part
    space: Space[Any]
    entries: Mapping[str, Entry[Any]]


class _Desks:
    """The files of each namespace of a store that is being made."""

    def __init__(self, root: Path, given: Given) -> None:
        self._root = root
        self._given = given
        self.seen: dict[str, Cabinet] = {}

    def of(self, namespace: str) -> Cabinet:
        """Those of one."""
        if namespace not in self.seen:
            self.seen[namespace] = Cabinet(Folders(self._root, namespace, self._given), Disk(1, 0))
        return self.seen[namespace]


def _inner(spaces: Spaces) -> list[Space[Any]]:
    """What the inner store has in the place of these spaces."""
    return [
        *(shadow_of(space) if laid_out(space) else space for space in spaces),
        REDO,
        GENERATIONS,
    ]


def _entries(part: Part, space: Space[Any]) -> Mapping[str, Entry[Any]]:
    try:
        return entries_of(part, space)
    except Unsound as unsound:
        raise StoreCorrupt(
            f"{unsound.spot.path} is damaged ({unsound.why}): read the store once, which restores "
            "it, and copy again",
            path=str(unsound.spot.path),
        ) from None


def _kept(inner: Contents, found: Sequence[_Found]) -> Iterator[Kept]:
    """Every record: those of the inner store as they are, and those in files with the revisions
    that it knows of them.
    """
    laid = {one.space.name for one in found}
    revisions: dict[tuple[str, str, str], int] = {}
    for kept in inner.records:
        if kept.space.name in laid:
            revisions[kept.space.name, kept.namespace, kept.key] = kept.revision
        elif kept.space not in (REDO, GENERATIONS):
            yield kept
    for part, space, entries in found:
        layout = laid_out(space)
        assert layout is not None
        for key in sorted(entries):
            revision = revisions.get((space.name, part.namespace, key), ADOPTED)
            record = entries[key].record(space, key, layout.wire)
            yield Kept(space, part.namespace, key, revision, space.encode(record))


def _inner_records(all_of: Contents, desks: _Desks) -> Iterator[Kept]:
    """The records as the inner store has them: of those in files the revisions, and what the files
    are to hold.
    """
    documents: dict[str, dict[Space[Any], dict[str, Any]]] = {}
    for kept in all_of.records:
        layout = laid_out(kept.space)
        if layout is None:
            yield kept
            continue
        document = to_plain(layout.wire.write(kept.space.decode(kept.key, kept.value)))
        documents.setdefault(kept.namespace, {}).setdefault(kept.space, {})[kept.key] = document
        yield Kept(shadow_of(kept.space), kept.namespace, kept.key, kept.revision, _MARK)
    revision = token.first(all_of.era)
    for namespace, by_space in documents.items():
        cabinet = desks.of(namespace)
        for key, part in numbered(cabinet.folders, _changes(cabinet, by_space)):
            yield Kept(REDO, namespace, key, revision, REDO.encode(part))
        for space in by_space:
            yield Kept(GENERATIONS, namespace, space.name, revision, _MARK)


def _changes(
    cabinet: Cabinet, by_space: Mapping[Space[Any], Mapping[str, Any]]
) -> Iterator[Change]:
    sheets: dict[Spot, Any] = {}
    locks: dict[Spot, Path | None] = {}
    for space, documents in by_space.items():
        layout = laid_out(space)
        if isinstance(layout, OneFile):
            spot = cabinet.spot(layout)
            sheets[spot] = with_documents(layout, sheets.get(spot), documents)
            locks[spot] = cabinet.lock_of(layout)
        elif isinstance(layout, FilePerRecord):
            for key, document in documents.items():
                yield Change(
                    cabinet.spot_of(layout, key),
                    render(document),
                    keep=False,
                    lock=cabinet.lock_of(layout),
                )
    for spot, value in sheets.items():
        yield Change(spot, render(value), keep=False, lock=locks[spot])


def _refuse_full(cabinet: Cabinet, space: Space[Any]) -> None:
    layout = laid_out(space)
    there: Path | None = None
    if isinstance(layout, OneFile) and os.path.lexists(cabinet.spot(layout).path):
        there = cabinet.spot(layout).path
    elif isinstance(layout, FilePerRecord) and (
        cards := cabinet.cards(space, layout, {}, tuple).entries
    ):
        there = cabinet.spot_of(layout, min(cards)).path
    if there is not None:
        raise Collision(f"the target holds {there}: a copy goes to a new store", path=str(there))


_MARK = GENERATIONS.encode(Mark())
