"""From what a transaction has changed to the files that show it, and bringing them up to a redo
record, once or again.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from holdfast.kernel.codec import to_json
from holdfast.kernel.layout import FilePerRecord, OneFile
from holdfast.kernel.space import Space
from holdfast.stores.files.cache import Cabinet
from holdfast.stores.files.disk import Disk, Spot, Unfit, sync_file
from holdfast.stores.files.documents import Sheet, members, render, with_documents
from holdfast.stores.files.record_set import Entry
from holdfast.stores.files.redo import Change, digest, resolved
from holdfast.stores.files.transaction import Room


class Card(NamedTuple):
    """One record with a file of its own, as it is to be; None: gone."""

    space: Space[Any]
    layout: FilePerRecord[Any]
    key: str
    entry: Entry[Any] | None
    change: Change


class Plan(NamedTuple):
    """The files of a transaction as they are to be, and the rooms they are made of."""

    sheets: dict[Spot, tuple[Sheet, list[Room[Any]]]]
    cards: list[Card]

    def changes(self, cabinet: Cabinet) -> list[Change]:
        """Every file to be written or removed."""
        whole = [
            Change(
                spot,
                sheet.data,
                keep=True,
                lock=cabinet.lock_of(together[0].layout),
                delta=_delta(sheet, together),
            )
            for spot, (sheet, together) in self.sheets.items()
        ]
        return whole + [card.change for card in self.cards]

    def remember(self, cabinet: Cabinet) -> None:
        """Once the files are in place: what they hold need not be read again."""
        for spot, (sheet, rooms) in self.sheets.items():
            cabinet.wrote(spot, sheet, {room.space: room.shelf.pile() for room in rooms})
        for space, layout, key, entry, _ in self.cards:
            cabinet.wrote_card(space, layout, key, entry)


def plan_of(rooms: Iterable[Room[Any]], cabinet: Cabinet) -> Plan:
    """The files that the changed rooms make."""
    plan = Plan({}, [])
    for room in rooms:
        if isinstance(room.layout, OneFile):
            _rewrite(plan, room, room.layout, cabinet)
            continue
        for key, entry in sorted(room.shelf.changed.items()):
            data = None if entry is None else render(entry.document)
            spot = cabinet.spot_of(room.layout, key)
            change = Change(spot, data, keep=False, lock=cabinet.lock_of(room.layout))
            plan.cards.append(Card(room.space, room.layout, key, entry, change))
    return plan


def bring_up(disk: Disk, changes: Iterable[Change], *, staged: bool) -> list[Spot]:
    """Make the files what they are to be, and make that last. `staged` says that their temporary
    files are as they should.

    May be done any number of times. Returns the files that another program has changed since, and
    that stay as they are. Raises OSError or StoreUnavailable; then some of them may be as before.
    """
    folders: dict[Any, Spot] = {}
    overtaken = []
    for change in changes if staged else [resolved(disk, change) for change in changes]:
        if not staged and disk.patiently(lambda change=change: _is_overtaken(disk, change)):  # type: ignore[misc]
            overtaken.append(change.spot)
            continue
        disk.patiently(lambda change=change: _apply(disk, change, staged=staged))  # type: ignore[misc]
        folders[change.spot.folder, change.spot.path.parent] = change.spot
    for spot in folders.values():
        disk.patiently(lambda spot=spot: disk.settle(spot))  # type: ignore[misc]
    return overtaken


def found_before(disk: Disk, changes: Iterable[Change]) -> list[Change]:
    """The changes with what they were decided by, for the files that other programs change too.
    Raises StoreUnavailable.
    """
    return [
        change if change.lock is None else change._replace(before=_content(disk, change.spot))
        for change in changes
    ]


def _content(disk: Disk, spot: Spot) -> str:
    try:
        found = disk.read(spot)
    except Unfit as error:
        # Neither a file nor nothing: whatever a program makes of it, it is another then.
        return str(error)
    return digest(None if found is None else found.data)


def _is_overtaken(disk: Disk, change: Change) -> bool:
    return change.before is not None and _content(disk, change.spot) not in (
        change.before,
        digest(change.data),
    )


def _rewrite(plan: Plan, room: Room[Any], layout: OneFile[Any], cabinet: Cabinet) -> None:
    assert room.sheet is not None
    spot = cabinet.spot(layout)
    sheet, together = plan.sheets.get(spot, (room.sheet, []))
    pile = room.shelf.pile()
    entries = pile.entries
    if _is_plain(layout):
        # Put together of what was written before: of a thousand records one is new.
        data = members(
            [entries[key].written or entries[key].rendered(key) for key in pile.sorted_keys()]
        )
    else:
        data = render(
            with_documents(
                layout, sheet.value, {key: entry.document for key, entry in entries.items()}
            )
        )
    plan.sheets[spot] = (Sheet(data), [*together, room])


def _is_plain(layout: OneFile[Any] | FilePerRecord[Any]) -> bool:
    """Is the file an object of this space's documents by key, and nothing else?"""
    return isinstance(layout, OneFile) and layout.part is None and layout.gather is dict


def _delta(sheet: Sheet, together: list[Room[Any]]) -> bytes | None:
    """What of a file is new, where that says less than all of it: its documents by key, null for
    one that is gone.
    """
    room = together[0]
    if not _is_plain(room.layout) or room.sheet is None or room.sheet.data is None:
        return None
    delta = to_json(
        {
            key: None if entry is None else entry.document
            for key, entry in room.shelf.changed.items()
        }
    )
    return delta if len(delta) < len(sheet.data or b"") else None


def _apply(disk: Disk, change: Change, *, staged: bool) -> None:
    spot, data, keep = change.spot, change.data, change.keep
    if data is None:
        disk.remove(spot)
        return
    if staged:
        try:
            disk.place(spot, keep=keep)
            return
        except FileNotFoundError:
            # A try before this one got as far as its place, or somebody tidied up.
            pass
    found = disk.read(spot)
    if found is not None and found.data == data:
        sync_file(spot)
        return
    disk.stage(spot, data)
    disk.place(spot, keep=keep)
