"""The journal: from when on it is to be told."""

from datetime import datetime, timedelta

from holdfast.kernel import clock
from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import InvalidValue

TAIL = 50
"""How many entries are told unless said."""
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Dropped(Plain, frozen=True, kw_only=True):
    """How many entries were dropped."""

    dropped: int


def since_of(text: str) -> datetime:
    """The instant that a text means: itself, or one so long ago, as in 90s, 15m, 2h and 7d. Raises
    InvalidValue.
    """
    try:
        if text[-1:] in _UNITS and text[:-1].isdecimal():
            return clock.SystemClock().now() - timedelta(seconds=int(text[:-1]) * _UNITS[text[-1]])
        return clock.parse(text, "since")
    except InvalidValue as error:
        raise InvalidValue(f"{error.message}, or an age like 15m", field="since") from None
    except (OverflowError, ValueError):
        raise InvalidValue(
            "that lies before the calendar begins: leave it out for everything", field="since"
        ) from None
