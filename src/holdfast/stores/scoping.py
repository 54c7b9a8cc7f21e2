"""What every store checks of a call before it touches anything."""

from collections.abc import Sequence
from typing import Any

from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import InvalidName, InvalidValue
from holdfast.kernel.limits import ENTRY_BYTES_MAX, KEY_BYTES_MAX, KEYS_PER_STATEMENT_MAX
from holdfast.kernel.space import Space


def same_residence(spaces: Sequence[Space[Any]]) -> bool:
    """True when the spaces are volatile, False when durable. Raises InvalidValue for a mixture, which no embedded store
    could commit as one."""
    volatile = {space.volatile for space in spaces}
    if len(volatile) > 1:
        names = ", ".join(space.name for space in spaces)
        raise InvalidValue(f"one transaction cannot span volatile and durable spaces: {names}")
    return volatile == {True}


def check_keys(keys: Sequence[str]) -> None:
    """Refuse keys that no store could keep. What a key means, and so which names it allows, is its domain's."""
    if not 0 < len(keys) <= KEYS_PER_STATEMENT_MAX:
        raise InvalidValue(f"one call takes 1 to {KEYS_PER_STATEMENT_MAX} keys, not {len(keys)}", keys=len(keys))
    for key in keys:
        if not 0 < _bytes(key) <= KEY_BYTES_MAX or "\0" in key:
            raise InvalidName(f"{ascii(key)[:60]} cannot be a key: use 1 to {KEY_BYTES_MAX} bytes of UTF-8 without NUL")


def check_entry(data: dict[str, Any] | None) -> bytes:
    """A journal entry's data as JSON. Raises InvalidValue when it is over the bound."""
    encoded = to_json(data or {})
    if len(encoded) > ENTRY_BYTES_MAX:
        raise InvalidValue(f"a journal entry may carry {ENTRY_BYTES_MAX} bytes, not {len(encoded)}", bytes=len(encoded))
    return encoded


def _bytes(key: str) -> int:
    try:
        return len(key.encode())
    except UnicodeEncodeError:
        return 0
