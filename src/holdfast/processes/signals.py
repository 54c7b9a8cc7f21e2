"""Signals that come to a command that waits: they end it in order. While `locks run` runs its
command, they are that one's.
"""

import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

EXIT_SIGNALLED = 128
"""What shells add a signal's number to."""

PASSED = (
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
    """Let SIGTERM and SIGHUP end what the block does as Ctrl-C would, so that a wait leaves nothing
    behind.
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


class Passing:
    """Takes the signals of this process and hands each, with who sent it, to `deliver` in the main
    thread, whatever that is doing: a blocking call is interrupted for it, and goes on unless
    `deliver` raises.

    Made in two steps, since the process must fork in between: from the making on, signals wait;
    from `begin` on, they are delivered. Those that this process was started to ignore, as under
    nohup(1), are left alone. A thread collects them, since only sigwaitinfo(2) tells who sent a
    signal; it sleeps as long as there is none.
    """

    def __init__(self) -> None:
        self.deliver: Deliver = drop
        self._ending = False
        self._arrived: deque[signal.struct_siginfo] = deque()
        self._signals = {
            number for number in PASSED if signal.getsignal(number) is not signal.SIG_IGN
        } | {signal.SIGCHLD}
        # Every thread that is made from here on inherits this, so that only the collector gets
        # them.
        self.before = signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)

    def begin(self, deliver: Deliver) -> None:
        """Begin to deliver, to this."""
        self.deliver = deliver
        self._main = threading.get_ident()
        signal.signal(_WAKE, self._hand_over)
        self._collector = threading.Thread(
            target=self._collect, name="holdfast-signals", daemon=True
        )
        self._collector.start()

    def end(self) -> frozenset[int]:
        """Deliver what has come. From here on signals wait, also while this process executes
        another program; return which.
        """
        self._ending = True
        signal.pthread_kill(self._collector.ident or 0, signal.SIGCHLD)
        self._collector.join()
        self._hand_over()
        return frozenset(self._signals)

    def _collect(self) -> None:
        while True:
            arrived = signal.sigwaitinfo(self._signals)
            if self._ending and arrived.si_signo == signal.SIGCHLD:
                return
            self._arrived.append(arrived)
            signal.pthread_kill(self._main, _WAKE)

    def _hand_over(self, *_: object) -> None:
        while self._arrived:
            self.deliver(self._arrived.popleft())
