"""What the parts of the registry share."""

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
        """The process that is to end a claim by its death. Raises RegistryNotFound, a ValueError, when there is none."""
        if isinstance(pid, ThisProcess):
            return self.processes.current(self.label)
        try:
            return None if pid is None else self.processes.of(pid, self.label)
        except NotFound as error:
            raise RegistryNotFound(error.message, **error.fields) from None

    def tried(self, body: Callable[[], T]) -> T:
        """Run something, and again after a while if the store could not be reached and certainly nothing was changed. A store
        that has tried as often as that itself is not asked again, nor is one that is closed."""
        for _ in range(self.settings.retry_attempts - 1):
            try:
                return body()
            except StoreUnavailable as error:
                if error.fields.get("outcome") != "none" or error.fields.get("tried") or error.fields.get("closed"):
                    raise
            self.pause(self.settings.retry_delay)
        return body()


@contextmanager
def told_as_registry() -> Iterator[None]:
    """Let what the store and the locks raise come out as the registry's errors, with the same words and fields."""
    try:
        yield
    except RegistryError:
        raise
    except tuple(general for general, _ in _KINDS) as error:
        kind = next(registry for general, registry in _KINDS if isinstance(error, general))
        raise kind(error.message, **error.fields) from error
