"""A call that waits, in a thread of its own."""

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from holdfast.primitives.locks.wait import Ahead
from tests.harness.timeouts import PATIENCE_S

T = TypeVar("T")


class Waiter(Generic[T]):
    """A call that waits, in a thread of its own. The constructor returns when the call is in the
    queue, and raises what the call raised instead.
    """

    def __init__(self, call: Callable[[Callable[[Sequence[Ahead]], None]], T]) -> None:
        self.ahead: list[Sequence[Ahead]] = []
        """The requests just ahead, each time that `on_wait` reported them."""
        self._result: list[T] = []
        self._error: list[BaseException] = []
        self._over = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()
        self.until_reported(1)

    def _run(self, call: Callable[[Callable[[Sequence[Ahead]], None]], T]) -> None:
        try:
            self._result.append(call(self._waits))
        except BaseException as error:
            self._error.append(error)
        finally:
            with self._changed:
                self._over = True
                self._changed.notify_all()

    def _waits(self, ahead: Sequence[Ahead]) -> None:
        with self._changed:
            self.ahead.append(ahead)
            self._changed.notify_all()

    def until_reported(self, times: int) -> None:
        """Wait until `on_wait` was called so many times."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: self._over or len(self.ahead) >= times, PATIENCE_S
            )
        if len(self.ahead) < times:
            raise AssertionError(f"it waits no more: {self.result()}")

    @property
    def waits(self) -> bool:
        return self._thread.is_alive()

    @property
    def ident(self) -> int:
        assert self._thread.ident is not None
        return self._thread.ident

    def result(self) -> T:
        """Return what the call returned, or raise what it raised."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "it waits on"
        if self._error:
            raise self._error[0]
        return self._result[0]
