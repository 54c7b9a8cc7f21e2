"""What the parts of the registry share.

What every call of the registry goes through: is it switched on, trying again, the registry's own
errors, followers.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from holdfast.kernel.errors import (
    Corrupt,
    DeadlockDetected,
    HoldfastError,
    LeaseLost,
    LockTimeout,
    NotFound,
    RegistryCorruption,
    RegistryDeadlock,
    RegistryError,
    RegistryLockTimeout,
    RegistryLost,
    RegistryNotFound,
    RegistryUnavailable,
    StoreUnavailable,
)
from holdfast.kernel.holder import Holder, Processes, ThisProcess
from holdfast.kernel.settings import NetworkSettings
from holdfast.kernel.store import Store
from holdfast.primitives.journal import Journal

T = TypeVar("T")

_KINDS: tuple[tuple[type[HoldfastError], type[RegistryError]], ...] = (
    (LockTimeout, RegistryLockTimeout),
    (Corrupt, RegistryCorruption),
    (StoreUnavailable, RegistryUnavailable),
    (DeadlockDetected, RegistryDeadlock),
    (LeaseLost, RegistryLost),
)


class Room(NamedTuple):
    """A store, and the terms on which the registry uses it."""

    store: Store
    journal: Journal
    processes: Processes
    settings: NetworkSettings
    label: str = ""
    pause: Callable[[float], None] = time.sleep

    def holder(self, pid: int | ThisProcess | None) -> Holder | None:
        """The process that is to end a claim by its death. Raises RegistryNotFound, a ValueError,
        when there is none.
        """
        if isinstance(pid, ThisProcess):
            return self.processes.current(self.label)
        try:
            return None if pid is None else self.processes.of(pid, self.label)
        except NotFound as error:
            raise RegistryNotFound(error.message, **error.fields) from None

    def tried(self, body: Callable[[], T]) -> T:
        """Run something, and again after a while if the store could not be reached and certainly
        nothing was changed. A store that has tried as often as that itself is not asked again, nor
        is one that is closed.
        """
        for _ in range(self.settings.retry_attempts - 1):
            try:
                return body()
            except StoreUnavailable as error:
                if (
                    error.fields.get("outcome") != "none"
                    or error.fields.get("tried")
                    or error.fields.get("closed")
                ):
                    raise
            self.pause(self.settings.retry_delay)
        return body()


@contextmanager
def told_as_registry() -> Iterator[None]:
    """Let what the store and the locks raise come out as the registry's errors, with the same words
    and fields.
    """
    try:
        yield
    except RegistryError:
        raise
    except tuple(general for general, _ in _KINDS) as error:
        kind = next(registry for general, registry in _KINDS if isinstance(error, general))
        raise kind(error.message, **error.fields) from error


class Calls:
    """The part of `Registry` that knows no host and no router."""

    def __init__(
        self,
        room: Room,
        *,
        logger: logging.Logger | None,
        enabled: bool,
        after_change: Callable[[], None],
    ) -> None:
        self._room = room
        self._settings: NetworkSettings = room.settings
        self._logger = logger or logging.getLogger("holdfast.network")
        self._enabled = enabled
        self._after_change = after_change

    def _change(self, body: Callable[[], T]) -> T:
        """Do something, and tell followers of the journal, whatever came of it."""
        try:
            return self._look(body)
        finally:
            if self._enabled:
                self._after_change()

    def _refuse_if_off(self) -> None:
        """Before anything that was given is looked at: what is switched off has no opinion of
        it.
        """
        if not self._enabled:
            raise RegistryError(
                "the registry is switched off by its configuration: set enabled to true to use it"
            )

    def _look(self, body: Callable[[], T]) -> T:
        self._refuse_if_off()
        try:
            with told_as_registry():
                return self._room.tried(body)
        except RegistryCorruption as error:
            # Told to the caller once, who may not be the one that reads the log.
            self._logger.error("registry damaged: %s", error.message)
            raise
