"""Listeners that sleep on file descriptors, shared by all stores."""

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from itertools import count

from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.limits import LISTEN_TOPICS_MAX, WAIT_RECHECK_S
from holdfast.kernel.store import Woken

_NOTICES_BYTES = 4096


class FdListener:
    """A listener whose notices make one descriptor readable. It is closed once: at the end of its
    `with` block or, when an exception came before the block, with the last reference.
    """

    _close: Callable[[], None] | None = None

    def __init__(
        self,
        fd: int,
        address: str,
        close: Callable[[], None],
        keep_in_use: Callable[[], int] | None = None,
    ) -> None:
        self.address = address
        self._fd = fd
        self._keep_in_use = keep_in_use
        self._close = close

    def __enter__(self) -> "FdListener":
        return self

    def __exit__(self, *_: object) -> None:
        close, self._close = self._close, None
        if close is not None:
            close()

    def __del__(self) -> None:
        self.__exit__()

    def outlive(self) -> tuple[int, ...]:
        return () if self._keep_in_use is None else (self._fd, self._keep_in_use())

    def wait(self, timeout_s: float | None, *, also: Sequence[int] = ()) -> Woken:
        sleep_s = WAIT_RECHECK_S if timeout_s is None else min(max(timeout_s, 0.0), WAIT_RECHECK_S)
        ready = readable([self._fd, *also], sleep_s)
        notified = self._fd in ready
        if notified:
            drain(self._fd)
        return Woken(notified, frozenset(ready) - {self._fd})


class Switchboard:
    """The listeners of this process by topic: eventfds, which can be polled with others."""

    def __init__(self) -> None:
        # Re-entrant: the garbage collector may close a listener at any moment, also inside a block
        # that holds the mutex.
        self._mutex = threading.RLock()
        self._fds: dict[str, set[int]] = {}
        self._numbers = count(1)

    def listen(self, topics: Sequence[str], *, address: str = "") -> FdListener:
        """Open a listener for the topics and for an address of its own."""
        check_topics(topics)
        fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        heard: tuple[str, ...] = tuple(topics)
        try:
            with self._mutex:
                own = f"@{address}{next(self._numbers)}"
                heard = (*topics, own)
                for topic in heard:
                    self._fds.setdefault(topic, set()).add(fd)
        except BaseException:
            self._leave(fd, heard)
            raise
        return FdListener(fd, own, lambda: self._leave(fd, heard))

    def notify(self, topic: str) -> None:
        """Wake the topic's listeners in this process."""
        with self._mutex:
            fds = self._fds.get(topic, set())
            for fd in tuple(fds):
                # The garbage collector may have closed it since the last write, in this thread.
                if fd in fds:
                    os.eventfd_write(fd, 1)

    def notify_all(self) -> None:
        """Wake every listener to read again, as after a lost connection."""
        with self._mutex:
            for topic in tuple(self._fds):
                self.notify(topic)

    def after_fork(self) -> None:
        """In a forked child: a thread that does not exist here may have held the mutex."""
        self._mutex = threading.RLock()

    def _leave(self, fd: int, heard: Sequence[str]) -> None:
        # Closed under the mutex: a notifier must never write to a number that is already another
        # file's.
        with self._mutex:
            for topic in heard:
                fds = self._fds.get(topic, set())
                fds.discard(fd)
                if not fds:
                    self._fds.pop(topic, None)
            os.close(fd)


def readable(fds: Sequence[int], timeout_s: float) -> set[int]:
    """Sleep until a descriptor is readable or hung up, or the time is up; return those that are."""
    # Loaded here: a short command rarely waits.
    import select

    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    deadline = time.monotonic() + timeout_s
    while True:
        left_ms = math.ceil((deadline - time.monotonic()) * 1000)
        ready = poller.poll(max(left_ms, 0))
        if ready or left_ms <= 0:
            return set(dict(ready))


def drain(fd: int) -> None:
    """Read all notices from a descriptor."""
    try:
        # A short read leaves nothing behind, and reading again would cost an exception.
        while len(os.read(fd, _NOTICES_BYTES)) == _NOTICES_BYTES:
            pass
    except BlockingIOError:
        pass


def check_topics(topics: Sequence[str]) -> None:
    if len(topics) > LISTEN_TOPICS_MAX:
        raise InvalidValue(
            f"a listener may have {LISTEN_TOPICS_MAX} topics, not {len(topics)}", topics=len(topics)
        )
