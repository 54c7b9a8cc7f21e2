"""The journal as server-sent events, each with an id behind which a client goes on after a lost
connection.

An id is a place that the store's journal can be read from, and the revision of the last entry that
was sent behind it. So a client that was cut off in the middle of a batch misses nothing and gets
nothing twice; one that was away for longer than the journal is kept is told so.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing

from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import HoldfastError, InvalidValue
from holdfast.kernel.limits import HTTP_KEEP_ALIVE_S
from holdfast.kernel.store import BEGINNING, Batch, Entry, Store
from holdfast.surfaces.http.changes import Changes

_log = logging.getLogger("holdfast.http")

_BEGIN = "0"
_BEGUN_ANEW = (
    b"event: journal.begun_anew\n"
    b'data: {"why":"the last id is of another journal: all entries of this one follow"}\n\n'
)
_CUT_SHORT = (
    b"event: journal.cut_short\n"
    b'data: {"why":"the entry of the last id is dropped by now, and others behind it may be: '
    b'what is left follows"}\n\n'
)


def event_id(cursor: str, revision: int = 0) -> str:
    """The id of an entry: the place it was read from, and its revision."""
    return f"{cursor or _BEGIN}~{revision}"


def place_of(given: str) -> tuple[str, int]:
    """The place that an id names. Raises InvalidValue for one that was never given."""
    cursor, separator, revision = given.partition("~")
    if (
        not separator
        or not revision.isdecimal()
        or not cursor.replace(".", "").isdecimal()
        or len(given) > 200
    ):
        raise InvalidValue(
            f"{given[:60]!a} is no id of an event: send the last one you got, or none",
            field="Last-Event-ID",
        )
    return (BEGINNING if cursor == _BEGIN else cursor), int(revision)


def behind(batch: Batch, revision: int) -> list[Entry]:
    """The entries of a batch behind one revision; all of them when that is not among them."""
    revisions = [entry.revision for entry in batch.entries]
    return (
        batch.entries[revisions.index(revision) + 1 :] if revision in revisions else batch.entries
    )


async def events(
    store: Store, changes: Changes, given: str | None, wanted: Callable[[Entry], bool]
) -> AsyncIterator[bytes]:
    """The wanted entries behind the id that a client gives, or from now on without one, as they
    come.

    Ends with the server, and when the store does not answer: the client asks again behind the last
    id it got.
    """
    try:
        async with aclosing(_events(store, changes, given, wanted)) as told:
            async for event in told:
                yield event
    except HoldfastError as error:
        # The answer has begun: it is too late for a status.
        _log.warning("a stream of events ends: %s", error.message)


async def _events(
    store: Store, changes: Changes, given: str | None, wanted: Callable[[Entry], bool]
) -> AsyncGenerator[bytes, None]:
    if given is None:
        cursor, revision = (await asyncio.to_thread(store.journal, limit=1, reverse=True)).cursor, 0
    else:
        cursor, revision = place_of(given)
    try:
        await asyncio.to_thread(store.journal, cursor, limit=1)
        yield b": events\n\n"
    except InvalidValue:
        # The store is another now, a copy of the one that gave the id: a client is told that
        # entries come again.
        cursor, revision = BEGINNING, 0
        yield _BEGUN_ANEW
    while not changes.closed:
        mark = changes.mark
        batch = await asyncio.to_thread(store.journal, cursor)
        if (
            revision
            and batch.entries
            and not any(entry.revision == revision for entry in batch.entries)
        ):
            yield _CUT_SHORT
        for entry in behind(batch, revision):
            if wanted(entry):
                yield _event(event_id(cursor, entry.revision), entry)
        if batch.entries:
            cursor, revision = batch.cursor, 0
        elif not await changes.passed(mark, HTTP_KEEP_ALIVE_S):
            yield b": still here\n\n"


def _event(name: str, entry: Entry) -> bytes:
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (name.encode(), entry.kind.encode(), to_json(entry))
