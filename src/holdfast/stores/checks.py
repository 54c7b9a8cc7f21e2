"""Checks that every store makes before it touches anything, and their errors."""

from collections.abc import Sequence
from typing import Any

from holdfast.kernel.errors import InvalidName, InvalidValue, NotFound, StoreUnavailable
from holdfast.kernel.limits import KEY_BYTES_MAX, KEYS_PER_STATEMENT_MAX
from holdfast.kernel.space import Space


def closed() -> StoreUnavailable:
    """The store was used after `close`."""
    return StoreUnavailable("the store is closed: connect again", outcome="none", closed=True)


def nested() -> InvalidValue:
    """A transaction was begun in the body of another one."""
    return InvalidValue(
        "a transaction cannot be begun inside another: do both in one, with both scopes"
    )


def no_record(space: Space[Any], key: str, namespace: str) -> NotFound:
    """A record that is asked for by name does not exist."""
    return NotFound(
        f"there is no {space.name}/{key} in namespace {namespace}", space=space.name, key=key
    )


def has_ended() -> InvalidValue:
    """The error for a transaction that is used outside its body."""
    return InvalidValue("this transaction has ended: use `tx` only inside its body")


class _Ended:
    def __contains__(self, _: object) -> bool:
        raise has_ended()

    def __getattr__(self, _: str) -> Any:
        raise has_ended()


ENDED: Any = _Ended()
"""Replaces the scope and the connection of an ended transaction, which another one may use by then:
every use raises.
"""


def check_keys(keys: Sequence[str], *, distinct: bool = False) -> None:
    """Refuse keys that no store can keep. Which names a key allows is decided by its domain."""
    number = len(keys)
    if not 0 < number <= KEYS_PER_STATEMENT_MAX:
        raise InvalidValue(
            f"one call takes 1 to {KEYS_PER_STATEMENT_MAX} keys, not {number}", keys=number
        )
    if distinct and number > 1 and len(set(keys)) < number:
        raise InvalidValue("a key is given twice: give each once")
    for key in keys:
        if not storable(key):
            raise no_key(key)


def check_key(key: str) -> None:
    if not storable(key):
        raise no_key(key)


def storable(key: str) -> bool:
    try:
        return 0 < len(key.encode()) <= KEY_BYTES_MAX and "\0" not in key
    except UnicodeEncodeError:
        return False


def no_key(key: str) -> InvalidName:
    return InvalidName(
        f"{ascii(key)[:60]} cannot be a key: use 1 to {KEY_BYTES_MAX} bytes of UTF-8 without NUL"
    )


def check_texts(*texts: str | None) -> None:
    """Raise InvalidValue for text that UTF-8 cannot encode."""
    try:
        for text in texts:
            if text is not None:
                text.encode()
    except UnicodeEncodeError as error:
        raise InvalidValue(f"no store can keep this text: {error}") from None


def check_limit(limit: int | None) -> None:
    """Refuse a negative limit, which means something else in each store."""
    if limit is not None and limit < 0:
        raise InvalidValue(
            f"a limit of {limit} is not possible: give 0 or more, or none", limit=limit
        )


def index_number(space: Space[Any], index: str) -> int:
    """The position of an index among those of a space. Raises InvalidValue for an unknown one."""
    try:
        return list(space.indexes).index(index)
    except ValueError:
        raise no_index(space, index) from None


def no_index(space: Space[Any], index: str) -> InvalidValue:
    names = ", ".join(space.indexes) or "none"
    return InvalidValue(f"space {space.name} has no index {index}: it declares {names}")


def out_of_scope(space: Space[Any]) -> InvalidValue:
    return InvalidValue(f"space {space.name} is not in this transaction's scope: add it")
