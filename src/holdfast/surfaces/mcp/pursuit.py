"""A wait in a thread of its own, which keeps its place while nobody asks about it."""

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from holdfast.kernel.errors import HoldfastError
from holdfast.surfaces.mcp.cancellation import Call, Stop

T = TypeVar("T")

_log = logging.getLogger("holdfast.mcp")


class Pursuit(Generic[T]):
    """Something that is waited for. `seek` is given the descriptor that ends its wait, and `ended`
    is called behind it.
    """

    def __init__(self, seek: Callable[[int], T], *, ended: Callable[[], object]) -> None:
        self._seek = seek
        self._ended = ended
        self._stop = Stop()
        self._mutex = threading.Lock()
        self._wakes: list[threading.Event] = []
        self.done = False
        self.found: T | None = None
        self.error: HoldfastError | None = None
        self._thread = threading.Thread(target=self._run, name="holdfast-pursuit", daemon=True)
        self._thread.start()

    def wait(self, limit_s: float, call: Call) -> bool:
        """Wait until it is over, the time has passed or the call is taken back; True when it is
        over.
        """
        woken = threading.Event()
        with self._mutex:
            if self.done:
                return True
            self._wakes.append(woken)
        call.wakes(woken)
        woken.wait(limit_s)
        with self._mutex:
            self._wakes.remove(woken)
        return self.done

    def stop(self, within_s: float) -> bool:
        """Give it up, and wait for that; True when it is over. What was found in the meantime is in
        `found`.
        """
        self._stop.ask()
        self._thread.join(within_s)
        return self.done

    def _run(self) -> None:
        try:
            self.found = self._seek(self._stop.fd)
        except HoldfastError as error:
            self.error = error
        except Exception as error:  # noqa: BLE001 - told to whoever waits for it
            _log.exception("a wait ended in a bug")
            self.error = HoldfastError(
                f"unexpected {type(error).__name__}: this is a bug; the server's log says where"
            )
        self._stop.close()
        with self._mutex:
            self.done = True
            waiting = list(self._wakes)
        for woken in waiting:
            woken.set()
        self._ended()
