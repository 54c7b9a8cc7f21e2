"""The journal as every store keeps it: its entries, and the cursors that are places in it."""

import os
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import InvalidValue, RecordInvalid
from holdfast.kernel.limits import ENTRY_BYTES_MAX
from holdfast.kernel.store import BEGINNING, Cursor, Entry

_PLACE_MAX = (1 << 63) - 1
"""The greatest number that every store can compare a place with."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def instant(microseconds: int) -> datetime:
    """The instant that is this many microseconds after 1970."""
    return _EPOCH + timedelta(microseconds=microseconds)


def microseconds(at: datetime) -> int:
    """An instant in microseconds since 1970."""
    since = at - _EPOCH
    return (since.days * 86400 + since.seconds) * 1_000_000 + since.microseconds


def check_entry(data: dict[str, Any] | None) -> bytes:
    """A journal entry's data as JSON. Raises InvalidValue for too much, or for no JSON."""
    try:
        encoded = to_json(data or {})
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValue(f"this cannot be a journal entry: {error}") from None
    if len(encoded) > ENTRY_BYTES_MAX:
        raise InvalidValue(
            f"a journal entry may carry {ENTRY_BYTES_MAX} bytes, not {len(encoded)}",
            bytes=len(encoded),
        )
    return encoded


def stored_entry(
    revision: int, at: int, actor: str, kind: str, subject: str, data: bytes | str
) -> Entry:
    """The entry in a row of a database, `at` in microseconds since 1970. Raises RecordInvalid for a
    damaged one.
    """
    return Entry(
        revision=revision,
        at=instant(at),
        actor=actor,
        kind=kind,
        subject=subject,
        data=_data_of(revision, data),
    )


def entry_problem(revision: int, data: bytes | str) -> str | None:
    """The problem of an entry's stored data; None for a sound one."""
    try:
        _data_of(revision, data)
    except RecordInvalid as error:
        return error.message
    return None


def _data_of(revision: int, data: bytes | str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError) as error:
        raise RecordInvalid(
            f"journal entry {revision} is damaged ({error}): `holdfast store check` lists all "
            "damage",
            revision=revision,
        ) from None


def places_of(cursor: Cursor, number: int, journal: int) -> list[int]:
    """The `number` positions in a cursor, all 0 at the beginning. Raises InvalidValue for a cursor
    of another journal: in the journal of a copied store the same numbers are other entries.
    """
    if cursor == BEGINNING:
        return [0] * number
    if not re.fullmatch(rf"[0-9]{{1,19}}(\.[0-9]{{1,19}}){{{number}}}", cursor):
        raise no_cursor(cursor)
    given, *places = map(int, cursor.split("."))
    if given != journal or max(places) > _PLACE_MAX:
        raise no_cursor(cursor)
    return places


def cursor_at(journal: int, places: Iterable[Any]) -> Cursor:
    return ".".join(map(str, (journal, *places)))


def no_cursor(cursor: Cursor) -> InvalidValue:
    return InvalidValue(
        f"{cursor[:60]!a} is not a cursor of this journal: leave it out to read from the beginning"
    )


def new_journal() -> int:
    """A number for a new journal, by which it knows its own cursors. It is random, and so long that
    no two journals have the same.
    """
    return int.from_bytes(os.urandom(6), "big") + 1
