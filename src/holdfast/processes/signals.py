"""The signals of a process that waits, or that runs a command and passes them on."""

import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

EXIT_SIGNALLED = 128
"""Shells add the number of a signal to this."""

_FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
)
_WAKE = signal.SIGRTMIN

Deliver = Callable[[signal.struct_siginfo], None]


class Interrupted(SystemExit):
    """A signal ended the wait: the program cleans up and exits."""

    def __init__(self, number: int) -> None:
        super().__init__(EXIT_SIGNALLED + number)
        self.number = number


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise Interrupted in the block, so that a wait cleans up as after
    Ctrl-C.
    """

    def interrupt(number: int, _: object) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)
        raise Interrupted(number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, interrupt)
    yield


def drop(_: signal.struct_siginfo) -> None:
    """Deliver a signal to nobody."""


class SignalForwarder:
    """Gives each signal of this process, with its sender, to `deliver` in the main thread. A
    blocking call is interrupted for that, and goes on unless `deliver` raises.

    It starts in two steps, since the process must fork in between: signals stay pending from the
    constructor on, and are delivered from `begin` on. Signals that this process was started to
    ignore, as under nohup(1), are left alone. A thread collects them, since only sigwaitinfo(2)
    shows who sent a signal.
    """

    def __init__(self) -> None:
        self.deliver: Deliver = drop
        self._ending = False
        self._arrived: deque[signal.struct_siginfo] = deque()
        self._signals = {
            number for number in _FORWARDED if signal.getsignal(number) is not signal.SIG_IGN
        } | {signal.SIGCHLD}
        # Threads that start from here on inherit the mask, so only the collector gets the signals.
        self.original_mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)

    def begin(self, deliver: Deliver) -> None:
        self.deliver = deliver
        self._main = threading.get_ident()
        signal.signal(_WAKE, self._deliver_arrived)
        self._collector = threading.Thread(
            target=self._collect, name="holdfast-signals", daemon=True
        )
        self._collector.start()

    def end(self) -> frozenset[int]:
        """Deliver what has arrived; return the signals that stay pending from here on, also while
        this process executes another program.
        """
        self._ending = True
        signal.pthread_kill(self._collector.ident or 0, signal.SIGCHLD)
        self._collector.join()
        self._deliver_arrived()
        return frozenset(self._signals)

    def _collect(self) -> None:
        while True:
            arrived = signal.sigwaitinfo(self._signals)
            if self._ending and arrived.si_signo == signal.SIGCHLD:
                return
            self._arrived.append(arrived)
            signal.pthread_kill(self._main, _WAKE)

    def _deliver_arrived(self, *_: object) -> None:
        while self._arrived:
            self.deliver(self._arrived.popleft())
