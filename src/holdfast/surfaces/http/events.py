"""The journal as server-sent events, and waiting for a change of the store.

Each event has an id, behind which a client continues after a lost connection: a cursor of the
store's journal, and the revision of the last entry that was sent behind it. So a client that was
cut off in the middle of a batch misses nothing and gets nothing twice. A client that was away for
longer than the journal is kept gets an event that says so.
"""

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from queue import SimpleQueue
from typing import Annotated, Any

from litestar import get
from litestar.params import HeaderParameter
from litestar.response import Stream

from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import HoldfastError, InvalidValue
from holdfast.kernel.limits import HTTP_KEEP_ALIVE_S, HTTP_LISTEN_ON_S
from holdfast.kernel.store import BEGINNING, Entry, Store
from holdfast.stores.listener import readable
from holdfast.surfaces.http.problems import SECURED, problems

_log = logging.getLogger("holdfast.http")

_AGAIN_S = 0.5
_BEGIN = "0"
_ID_CHARS_MAX = 200
_BEGUN_ANEW = (
    b"event: journal.begun_anew\n"
    b'data: {"why":"the last id is of another journal: all entries of this one follow"}\n\n'
)
_CUT_SHORT = (
    b"event: journal.cut_short\n"
    b'data: {"why":"the entry of the last id is dropped by now, and others behind it may be: '
    b'what is left follows"}\n\n'
)


class Changes:
    """Counts the changes of a store while somebody watches. One thread listens for all coroutines.

    Inside of `watched`, read `mark` before you read the store, and then wait for a change since
    that mark.
    """

    def __init__(self, store: Store, topics: Sequence[str]) -> None:
        self._store = store
        self._topics = list(topics)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        self._watchers = 0
        self._listening: asyncio.Future[None] | None = None
        """Done once the thread listens; None while it shall not."""
        self._starts: SimpleQueue[asyncio.Future[None] | None] = SimpleQueue()
        self._stop_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Written once for each start."""
        self._thread = threading.Thread(target=self._run, name="holdfast-changes", daemon=True)
        self.mark = 0
        self.closed = False

    def start(self) -> None:
        """Begin to serve watchers. Called on the loop that waits."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Listen for the time of this block, and a moment longer: a client mostly asks again.

        Nobody else listens in between, because each listener costs every change a wake-up.
        """
        loop = asyncio.get_running_loop()
        self._watchers += 1
        try:
            if self._listening is None and not self.closed:
                self._listening = loop.create_future()
                self._starts.put(self._listening)
            if self._listening is not None and not self._listening.done():
                await asyncio.shield(self._listening)
            yield
        finally:
            self._watchers -= 1
            if not self._watchers:
                loop.call_later(HTTP_LISTEN_ON_S, self._stop_if_unwatched)

    async def wait(self, mark: int, timeout_s: float) -> bool:
        """Wait until something has changed since `mark`; False after the time or when closed."""
        if self.mark == mark and not self.closed:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(future)
            try:
                await asyncio.wait_for(future, timeout_s)
            except TimeoutError:
                return False
            finally:
                self._waiting.discard(future)
        return not self.closed

    def end_waits(self) -> None:
        """End all waits, now and from now on. Called on the loop."""
        self.closed = True
        self._wake()

    def close(self) -> None:
        """Stop listening. Called on the loop."""
        self.closed = True
        self._stop()
        self._starts.put(None)
        if self._loop is not None:
            self._thread.join()
        os.close(self._stop_fd)

    def _stop_if_unwatched(self) -> None:
        if not self._watchers and not self.closed:
            self._stop()

    def _stop(self) -> None:
        if self._listening is not None:
            self._listening = None
            os.eventfd_write(self._stop_fd, 1)

    def _run(self) -> None:
        while (started := self._starts.get()) is not None:
            while not self._listen(started):
                pass
            os.eventfd_read(self._stop_fd)

    def _listen(self, started: "asyncio.Future[None]") -> bool:
        """Listen until stopped; False when the store fails before."""
        stop = frozenset({self._stop_fd})
        try:
            with self._store.listen(self._topics) as listener:
                self._call_soon(_finish, started)
                while not listener.wait(None, also=[self._stop_fd]).ready:
                    self._call_soon(self._wake)
                return True
        except (HoldfastError, OSError):
            # The store is away. Those who wait read it again, and get the error there.
            self._call_soon(_finish, started)
            self._call_soon(self._wake)
            return readable([self._stop_fd], _AGAIN_S) == stop

    def _call_soon(self, work: Callable[..., None], *given: Any) -> None:
        # The loop may be closed by now: then nobody waits.
        with contextlib.suppress(RuntimeError):
            if self._loop is not None:
                self._loop.call_soon_threadsafe(work, *given)

    def _wake(self) -> None:
        self.mark += 1
        for future in self._waiting:
            _finish(future)


def _finish(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def events_route(
    store: Store, changes: Changes, wanted: Callable[[Entry], bool], **options: Any
) -> Any:
    """The route of the wanted entries. `options` are those of the framework's routes."""

    @get(
        "/v1/events",
        media_type="text/event-stream",
        responses=problems(*options.pop("statuses", ())),
        security=SECURED,
        **options,
    )
    async def stream(
        last_event_id: Annotated[
            str | None, HeaderParameter(name="Last-Event-ID", required=False)
        ] = None,
    ) -> Stream:
        """What happens, as server-sent events; after Last-Event-ID, or from now on."""
        # Both before the response begins: afterwards it is too late for an error's status.
        given = None if last_event_id is None else place_of(last_event_id)
        end = await asyncio.to_thread(store.journal, limit=1, reverse=True)
        # A client that has seen the response begin gets every later entry.
        sent = _until_error(_events(store, changes, given or (end.cursor, 0), wanted))
        return Stream(sent, media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    return stream


def event_id(cursor: str, revision: int = 0) -> str:
    """The id of an entry: the cursor it was read from, and its revision."""
    return f"{cursor or _BEGIN}~{revision}"


def place_of(given: str) -> tuple[str, int]:
    """The cursor and revision of an id. Raises InvalidValue for what is no id of an event."""
    cursor, separator, revision = given.partition("~")
    if (
        not separator
        or not revision.isdecimal()
        or not cursor.replace(".", "").isdecimal()
        or len(given) > _ID_CHARS_MAX
    ):
        raise InvalidValue(
            f"{given[:60]!a} is no id of an event: send the last one you got, or none",
            field="Last-Event-ID",
        )
    return (BEGINNING if cursor == _BEGIN else cursor), int(revision)


async def _until_error(events: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    """The events, until the store fails: the client asks again behind the last id it got."""
    try:
        async with contextlib.aclosing(events):
            async for event in events:
                yield event
    except HoldfastError as error:
        _log.warning("a stream of events ends: %s", error.message)


async def _events(
    store: Store, changes: Changes, place: tuple[str, int], wanted: Callable[[Entry], bool]
) -> AsyncGenerator[bytes, None]:
    """The wanted entries behind a place. Ends with the server."""
    cursor, revision = place
    try:
        await asyncio.to_thread(store.journal, cursor, limit=1)
        yield b": events\n\n"
    except InvalidValue:
        # The store was replaced by a copy, which has another journal: all its entries follow.
        cursor, revision = BEGINNING, 0
        yield _BEGUN_ANEW
    async with changes.watched():
        while not changes.closed:
            mark = changes.mark
            batch = await asyncio.to_thread(store.journal, cursor)
            sent = {one.revision for one in batch.entries}
            if revision and batch.entries and revision not in sent:
                yield _CUT_SHORT
            for entry in batch.behind(revision):
                if wanted(entry):
                    name, kind = event_id(cursor, entry.revision), entry.kind
                    yield b"id: %b\nevent: %b\ndata: %b\n\n" % (
                        name.encode(),
                        kind.encode(),
                        to_json(entry),
                    )
            if batch.entries:
                cursor, revision = batch.cursor, 0
            elif not await changes.wait(mark, HTTP_KEEP_ALIVE_S):
                yield b": still here\n\n"
