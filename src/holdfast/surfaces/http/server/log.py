"""The journal over HTTP. As it grows, it is told at /v1/events."""

from typing import Annotated

from holdfast.kernel.codec import Plain
from holdfast.kernel.limits import LIST_MAX
from holdfast.kernel.store import Entry
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.answers.log import TAIL, Dropped, since_of
from holdfast.surfaces.http.server.fields import Label, Limit, told
from holdfast.surfaces.http.server.operation import operation

_When = Annotated[
    str,
    told(
        "An instant (2026-01-31T12:00:00Z) or an age (90s, 15m, 2h, 7d).",
        pattern=r"^[1-9][0-9]{0,6}[smhd]$",
    ),
]


class ReadLog(Plain, frozen=True, kw_only=True):
    """From when on, about what, and how many of the last: 50 unless told, or since when."""

    since: _When | None = None
    subject: Label | None = None
    tail: Limit | None = None


@operation("GET", "/v1/log")
def read(hf: Holdfast, asked: ReadLog) -> list[Entry]:
    """The journal: every change, in the order in which they took effect, the last of those that
    match.
    """
    begin = None if asked.since is None else since_of(asked.since)
    most = asked.tail if asked.tail is not None else TAIL if begin is None else LIST_MAX
    return hf.log.chosen(begin=begin, subject=asked.subject, limit=most)[0] if most else []


@operation("POST", "/v1/upkeep/log/prune")
def prune(hf: Holdfast) -> Dropped:
    """Drop what is beyond the configured bounds."""
    return Dropped(dropped=hf.log.prune())


OPERATIONS = [read, prune]
