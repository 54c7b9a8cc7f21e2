"""Background renewal: a thread renews what this process holds and learns what is lost, as long as
it holds something; another ends what is held for a time.
"""

import contextlib
import math
import os
import select
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from holdfast.kernel import threads
from holdfast.kernel.errors import HoldfastError
from holdfast.kernel.store import Store
from holdfast.primitives.steady_clock import steady_clock

_IDLE_S = 60.0
_GRACE_S = 0.05
"""How long the thread waits before it asks the store for the first time. A short command releases
its claim sooner, and pays for no listener and no read: they were a third of its calls.
"""
_CLOSE_S = 2.0
_STORE_LOST_S = 1.0
_UNFINISHED_S = 0.05
_NO_MEMORY_S = 0.05


class Expiring(Protocol):
    """Something with an end on the monotonic clock."""

    @property
    def ends_s(self) -> float:
        """When it ends unless renewed; `math.inf` if only its process ends it."""


class Kept(Expiring, Protocol):
    """A claim that this process holds."""

    @property
    def id(self) -> str: ...

    @property
    def since_s(self) -> float:
        """When it began, on the monotonic clock."""

    def lose(self) -> None:
        """Note that it was taken away."""


K = TypeVar("K", bound=Kept)


class Keeper(Generic[K]):
    """The claims that this process holds.

    Its thread calls `renew` with the claims that are due, or with all after a notice to the topic;
    it returns those that are gone. It calls `tick` every few seconds for other background work, and
    does not end while `unfinished` says that some is left. A claim is lost when it ends by this
    process's clock, whether or not the store answers.
    """

    _wake_fd: int | None

    def __init__(
        self,
        store: Store,
        *,
        topic: Callable[[], str],
        renew: Callable[[list[K]], list[K]],
        renew_every_s: float,
        tick: Callable[[], None] = lambda: None,
        unfinished: Callable[[], bool] = lambda: False,
        tick_every_s: float = float("inf"),
    ) -> None:
        self._store = store
        self._topic = topic
        self._renew = renew
        self._tick = tick
        self._unfinished = unfinished
        self._renew_every_s = renew_every_s
        self._wake_every_s = min(tick_every_s, renew_every_s)
        self._timer = ExpiryTimer(self.kept, self._expire)
        self.begin_process()
        _keepers.add(self)

    def begin_process(self) -> None:
        """Begin with nothing, as in a forked child: its parent keeps the claims."""
        self._timer.begin_process()
        self._mutex = threading.Lock()
        self._held: dict[str, K] = {}
        self._renewed_s: dict[str, float] = {}
        self._thread: threading.Thread | None = None
        self._wake_fd = None
        self._closed = False

    def close_inherited(self) -> None:
        """In a forked child, close its copy of the parent's descriptor, before another file can get
        that number.
        """
        fd, self._wake_fd = self._wake_fd, None
        if fd is not None:
            with contextlib.suppress(OSError):
                os.close(fd)

    def add(self, kept: K) -> None:
        """Keep a claim until it is discarded."""
        self._held[kept.id] = kept
        self._timer.watch(kept)
        if self._thread is None:
            self._start()

    def discard(self, kept: K) -> bool:
        """Stop keeping a claim. True for one of several threads, and only if it was kept."""
        if self._renewed_s:
            self._renewed_s.pop(kept.id, None)
        return self._held.pop(kept.id, None) is not None

    def kept(self) -> list[K]:
        return list(self._held.values())

    def keeps(self, one: K) -> bool:
        return one.id in self._held

    def wake(self) -> None:
        """Start the thread if needed, and let it tick now."""
        if self._thread is None:
            self._start()
        with self._mutex:
            self._signal()

    def close(self) -> None:
        """End the thread. Claims live by process and lease from then on. Asks no store."""
        with self._mutex:
            self._closed, thread = True, self._thread
            self._signal()
        self._timer.close()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_CLOSE_S)

    def _signal(self) -> None:
        if self._wake_fd is not None:
            os.eventfd_write(self._wake_fd, 1)

    def _expire(self, one: Any) -> None:
        found = self._held.pop(one.id, None)
        if found is None:
            # Its holder is releasing it, which is no loss.
            return
        if found is one:
            found.lose()
        else:
            # Its holder released it and has claimed the same again, under the same id.
            self._held.setdefault(one.id, found)

    def _start(self) -> None:
        with self._mutex:
            if self._thread is None and not self._closed:
                if self._wake_fd is None:
                    self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
                self._thread = threading.Thread(
                    target=self._run, name="holdfast-keeper", daemon=True
                )
                try:
                    threads.start(self._thread)
                except BaseException:
                    # Let the next call start another thread. A second one beside it does no harm.
                    self._thread = None
                    raise

    def _run(self) -> None:
        try:
            while True:
                try:
                    self._keep()
                    return
                except (MemoryError, RecursionError):
                    # No other thread renews the claims, or withdraws what was left.
                    time.sleep(_NO_MEMORY_S)
        finally:
            with self._mutex:
                if self._thread is threading.current_thread():
                    self._thread = None
                if self._thread is None and self._wake_fd is not None:
                    os.close(self._wake_fd)
                    self._wake_fd = None

    def _keep(self) -> None:
        idle_since_s = time.monotonic()
        wake_fd = self._wake_fd
        assert wake_fd is not None
        poll = select.poll()
        poll.register(wake_fd, select.POLLIN)
        poll.poll(_GRACE_S * 1000)
        # At first, as after an outage, a notice may have come before there was a listener.
        notified = True
        while not self._closed:
            try:
                with self._store.listen([self._topic()]) as listener:
                    while not self._closed:
                        # A live holder keeps the store's record of its clock up to date.
                        steady_clock(self._store).compare()
                        self._renew_due(everything=notified)
                        idle_since_s = time.monotonic() if self._held else idle_since_s
                        if self._done(idle_since_s):
                            return
                        # Work left from the last tick is retried at once: others may wait for it.
                        woken = listener.wait(
                            _UNFINISHED_S if self._unfinished() else self._wake_every_s,
                            also=[wake_fd],
                        )
                        notified = woken.notified
                        if wake_fd in woken.ready:
                            os.eventfd_read(wake_fd)
                        if not self._closed:
                            self._tick()
                return
            except (HoldfastError, OSError):
                # The store does not answer, or was closed. Nothing notifies of its return.
                notified = True
                if self._done(idle_since_s):
                    return
                time.sleep(min(self._wake_every_s, _STORE_LOST_S))

    def _done(self, idle_since_s: float) -> bool:
        with self._mutex:
            idle = (
                not self._held
                and not self._unfinished()
                and time.monotonic() - idle_since_s > _IDLE_S
            )
            if not self._closed and not idle:
                return False
            thread, self._thread = self._thread, None
            if (self._held or self._unfinished()) and not self._closed:
                # Added in between by a caller that saw this thread still running.
                self._thread = thread
                return False
            return True

    def _renew_due(self, *, everything: bool) -> None:
        now_s = time.monotonic()
        due = [
            one
            for one in self.kept()
            if everything or now_s - self._renewed_s.get(one.id, one.since_s) >= self._renew_every_s
        ]
        if not due:
            return
        gone = {one.id for one in self._renew(due)}
        for one in due:
            if one.id in gone:
                self._expire(one)
            elif one.id in self._held:
                self._renewed_s[one.id] = now_s
        for gone_id in set(self._renewed_s) - set(self._held):
            self._renewed_s.pop(gone_id, None)


class ExpiryTimer:
    """A thread that calls `expire` for each held claim at its end, by this process's own clock, as
    the store may not answer. It runs only while a claim has an end.
    """

    def __init__(
        self, held: Callable[[], Iterable[Expiring]], expire: Callable[[Expiring], None]
    ) -> None:
        self._held = held
        self._expire = expire
        self.begin_process()

    def begin_process(self) -> None:
        """Begin with nothing, as in a forked child."""
        self._mutex = threading.Lock()
        self._wake = threading.Event()
        self._next_s = math.inf
        self._thread: threading.Thread | None = None
        self._closed = False

    def watch(self, one: Expiring) -> None:
        """Expire this claim at its end. Costs nothing while another ends first."""
        if one.ends_s >= self._next_s:
            return
        with self._mutex:
            self._next_s = one.ends_s
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self._run, name="holdfast-expiry", daemon=True
                )
                try:
                    threads.start(self._thread)
                except BaseException:
                    # Let the next call start another thread. A second one beside it does no harm.
                    self._thread, self._next_s = None, math.inf
                    raise
        self._wake.set()

    def close(self) -> None:
        """End the thread: nothing expires any more."""
        self._closed = True
        self._wake.set()

    def _run(self) -> None:
        while not self._closed:
            try:
                self._wake.clear()
                now_s = time.monotonic()
                for one in [one for one in self._held() if one.ends_s <= now_s]:
                    self._expire(one)
                with self._mutex:
                    # Reset before the scan: `watch` notes a claim that comes too late for it.
                    self._next_s = math.inf
                    self._next_s = min((one.ends_s for one in self._held()), default=math.inf)
                    if self._next_s == math.inf:
                        # The next call of `watch` starts another thread.
                        self._thread = None
                        return
                    left_s = max(self._next_s - now_s, 0)
                self._wake.wait(left_s)
            except MemoryError:
                # No other thread does this.
                time.sleep(_NO_MEMORY_S)


class Forked(Protocol):
    """Something that starts again in a forked child."""

    def begin_process(self) -> None: ...


_keepers: "weakref.WeakSet[Keeper[Any]]" = weakref.WeakSet()
_forked: "weakref.WeakSet[Forked]" = weakref.WeakSet()


def begin_after_fork(owner: Forked) -> None:
    """Call `owner.begin_process` in each forked child."""
    _forked.add(owner)


def _after_fork() -> None:
    for keeper in list(_keepers):
        keeper.close_inherited()
    # While the child has one thread: of several, one would delete what another has acquired.
    for owner in list(_forked):
        with contextlib.suppress(Exception):
            owner.begin_process()


os.register_at_fork(after_in_child=_after_fork)
