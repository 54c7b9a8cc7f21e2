"""What every store checks of a call before it touches anything."""

import os
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import InvalidName, InvalidValue, NotFound, StoreUnavailable
from holdfast.kernel.limits import ENTRY_BYTES_MAX, KEY_BYTES_MAX, KEYS_PER_STATEMENT_MAX
from holdfast.kernel.space import Rows, Space
from holdfast.kernel.store import BEGINNING, Cursor, spaces_of


class Plan(NamedTuple):
    """What a store must know of a scope."""

    spaces: list[Space[Any]]
    names: frozenset[str]
    volatile: bool


@lru_cache(maxsize=1024)
def plan_of(scope: tuple[Space[Any] | Rows, ...]) -> Plan:
    """A scope worked out, once for all its transactions. Raises InvalidValue for one that mixes
    volatile and durable.
    """
    spaces = spaces_of(scope)
    return Plan(spaces, frozenset(space.name for space in spaces), same_residence(spaces))


def closed() -> StoreUnavailable:
    """The store was used after `close`."""
    return StoreUnavailable("the store is closed: connect again", outcome="none", closed=True)


def no_record(space: Space[Any], key: str, namespace: str) -> NotFound:
    """A record that is asked for by name does not exist."""
    return NotFound(
        f"there is no {space.name}/{key} in namespace {namespace}", space=space.name, key=key
    )


def has_ended() -> InvalidValue:
    """A transaction was used outside of its body."""
    return InvalidValue("this transaction has ended: use `tx` only inside its body")


class _Ended:
    """Refuses whatever is asked of it."""

    def __contains__(self, _: object) -> bool:
        raise has_ended()

    def __getattr__(self, _: str) -> Any:
        raise has_ended()


ENDED: Any = _Ended()
"""What a transaction has in the place of its scope and connection once it has ended: they may be
another's by then.
"""


def same_residence(spaces: Sequence[Space[Any]]) -> bool:
    """True when the spaces are volatile, False when durable. Raises InvalidValue for a mixture,
    which no embedded store could commit as one.
    """
    volatile = {space.volatile for space in spaces}
    if len(volatile) > 1:
        names = ", ".join(space.name for space in spaces)
        raise InvalidValue(f"one transaction cannot span volatile and durable spaces: {names}")
    return volatile == {True}


def check_keys(keys: Sequence[str], *, distinct: bool = False) -> None:
    """Refuse keys that no store could keep. What a key means, and so which names it allows, is its
    domain's.
    """
    number = len(keys)
    if not 0 < number <= KEYS_PER_STATEMENT_MAX:
        raise InvalidValue(
            f"one call takes 1 to {KEYS_PER_STATEMENT_MAX} keys, not {number}", keys=number
        )
    if distinct and number > 1 and len(set(keys)) < number:
        raise InvalidValue("a key is given twice: give each once")
    for key in keys:
        if not storable(key):
            raise _no_key(key)


def check_key(key: str) -> None:
    """Refuse a key that no store could keep."""
    if not storable(key):
        raise _no_key(key)


def storable(key: str) -> bool:
    """Could there be a record under this key?"""
    try:
        return 0 < len(key.encode()) <= KEY_BYTES_MAX and "\0" not in key
    except UnicodeEncodeError:
        return False


def _no_key(key: str) -> InvalidName:
    return InvalidName(
        f"{ascii(key)[:60]} cannot be a key: use 1 to {KEY_BYTES_MAX} bytes of UTF-8 without NUL"
    )


def check_texts(*texts: str | None) -> None:
    """Refuse text that no encoding can carry."""
    try:
        for text in texts:
            if text is not None:
                text.encode()
    except UnicodeEncodeError as error:
        raise InvalidValue(f"no store can keep this text: {error}") from None


def check_limit(limit: int | None) -> None:
    """Refuse a negative number of records, which stores would each take for something else."""
    if limit is not None and limit < 0:
        raise InvalidValue(
            f"a limit of {limit} is not possible: give 0 or more, or none", limit=limit
        )


def index_number(space: Space[Any], index: str) -> int:
    """Which of a space's indexes this is. Raises InvalidValue for one that it does not have."""
    try:
        return list(space.indexes).index(index)
    except ValueError:
        names = ", ".join(space.indexes) or "none"
        raise InvalidValue(
            f"space {space.name} has no index {index}: it declares {names}"
        ) from None


def out_of_scope(space: Space[Any]) -> InvalidValue:
    """What to say of a space that a transaction uses and did not name."""
    return InvalidValue(f"space {space.name} is not in this transaction's scope: add it")


def check_entry(data: dict[str, Any] | None) -> bytes:
    """A journal entry's data as JSON. Raises InvalidValue when it is over the bound or is no
    JSON.
    """
    try:
        encoded = to_json(data or {})
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValue(f"this cannot be told in the journal: {error}") from None
    if len(encoded) > ENTRY_BYTES_MAX:
        raise InvalidValue(
            f"a journal entry may carry {ENTRY_BYTES_MAX} bytes, not {len(encoded)}",
            bytes=len(encoded),
        )
    return encoded


def places_of(cursor: Cursor, number: int, journal: int) -> list[int]:
    """The so many numbers of a cursor, all 0 at the beginning. Raises InvalidValue for one that
    this journal did not give: in that of a copy of its store the same numbers are other places.
    """
    if cursor == BEGINNING:
        return [0] * number
    parts = cursor.split(".")
    if len(parts) != number + 1 or not all(
        part.isascii() and part.isdecimal() and len(part) < 20 for part in parts
    ):
        raise no_cursor(cursor)
    given, *places = (int(part) for part in parts)
    if given != journal or max(places) > NUMBER_MAX:
        raise no_cursor(cursor)
    return places


def cursor_at(journal: int, places: Iterable[Any]) -> Cursor:
    """The cursor that stands for these places in this journal."""
    return ".".join(map(str, (journal, *places)))


def no_cursor(cursor: Cursor) -> InvalidValue:
    """What to say of a cursor that another journal gave, or none."""
    return InvalidValue(
        f"{cursor[:60]!a} is not a cursor of this journal: leave it out to read from the beginning"
    )


def new_journal() -> int:
    """The number by which a new journal knows its own cursors."""
    return int.from_bytes(os.urandom(_JOURNAL_BYTES), "big") + 1


_JOURNAL_BYTES = 6
"""So many that two journals which could be mistaken for each other are not given the same number.
"""


NUMBER_MAX = (1 << 63) - 1
"""The greatest number that every store can keep."""
