"""The journal. As it grows, /v1/events and `holdfast log --follow` stream it."""

from datetime import datetime, timedelta
from typing import Annotated

from holdfast.kernel import clock
from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.limits import LIST_MAX
from holdfast.kernel.store import Entry
from holdfast.operations.fields import Label, Limit, described
from holdfast.operations.operation import Flag, Request, operation
from holdfast.runtime.connection import Holdfast

TAIL = 50
"""How many entries are returned unless the request says."""
_WHEN = "An instant (2026-01-31T12:00:00Z) or an age (90s, 15m, 2h, 7d)."
_When = Annotated[str, described(_WHEN, pattern=r"^[1-9][0-9]{0,6}[smhd]$")]


class ReadLog(Request, frozen=True, kw_only=True):
    """Since when, about what, and how many of the last: 50 by default, all with `since`."""

    since: Annotated[_When | None, Flag("--since", metavar="WHEN", help=_WHEN)] = None
    subject: Annotated[
        Label | None, Flag("--subject", help="Only entries about this, such as a job's id.")
    ] = None
    tail: Annotated[
        Limit | None,
        Flag(
            "-n",
            "--tail",
            within=(0, None),
            help=f"How many of the last; 0 for all.  [default: {TAIL}; all with --since]",
        ),
    ] = None


class Dropped(Plain, frozen=True, kw_only=True):
    """How many entries were dropped."""

    dropped: int


@operation("GET /v1/log", cli="log")
def read(hf: Holdfast, request: ReadLog) -> list[Entry]:
    """The journal: every change, in the order in which they took effect. The last that match."""
    begin = since_of(hf, request)
    most = tail_of(request, LIST_MAX)
    return hf.log.chosen(begin=begin, subject=request.subject, limit=most)[0] if most else []


@operation("POST /v1/upkeep/log/prune", cli="log")
def prune(hf: Holdfast) -> Dropped:
    """Drop what is beyond the configured bounds."""
    return Dropped(dropped=hf.log.prune())


def tail_of(request: ReadLog, every: int) -> int:
    """How many of the last entries are wanted; `every` stands for all of them."""
    if request.tail is None:
        return TAIL if request.since is None else every
    return request.tail


def since_of(hf: Holdfast, request: ReadLog) -> datetime | None:
    """The instant that `since` names, or so long ago (90s, 15m, 2h, 7d) by the store's clock.

    Raises InvalidValue.
    """
    text = request.since
    if text is None:
        return None
    try:
        if text[-1:] in clock.UNITS_S and text[:-1].isdecimal():
            seconds = int(text[:-1]) * clock.UNITS_S[text[-1]]
            return hf.store.now() - timedelta(seconds=seconds)
        return clock.parse(text, "since")
    except InvalidValue as error:
        raise InvalidValue(f"{error.message}, or an age like 15m", field="since") from None
    except (OverflowError, ValueError):
        raise InvalidValue(
            "that lies before the calendar begins: leave it out for everything", field="since"
        ) from None


OPERATIONS = [read, prune]
