"""What every operation of the registry shares: store, settings, retries and error types."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from holdfast.kernel import errors
from holdfast.kernel.holder import Holder, Processes, ThisProcess
from holdfast.kernel.settings import NetworkSettings
from holdfast.kernel.store import Store
from holdfast.primitives.journal import Journal

P = ParamSpec("P")
T = TypeVar("T")
H = TypeVar("H", bound="HasContext")

Pid = int | ThisProcess | None
"""Whose death ends a claim: this process, another, or none."""

_REGISTRY_ERRORS: dict[type[errors.HoldfastError], type[errors.RegistryError]] = {
    errors.LockTimeout: errors.RegistryLockTimeout,
    errors.Corrupt: errors.RegistryCorruption,
    errors.StoreUnavailable: errors.RegistryUnavailable,
    errors.DeadlockDetected: errors.RegistryDeadlock,
    errors.LeaseLost: errors.RegistryLost,
}


@contextmanager
def registry_errors() -> Iterator[None]:
    """Turn errors of the store and the locks into the registry's, with the same text and fields."""
    try:
        yield
    except errors.RegistryError:
        raise
    except tuple(_REGISTRY_ERRORS) as error:
        kind = next(new for old, new in _REGISTRY_ERRORS.items() if isinstance(error, old))
        raise kind(error.message, **error.fields) from error


class NetworkContext(NamedTuple):
    """A store, and how the registry uses it."""

    store: Store
    journal: Journal
    processes: Processes
    settings: NetworkSettings
    label: str
    logger: logging.Logger
    enabled: bool
    after_change: Callable[[], None]
    """Called after each change, also one that failed: followers of the journal catch up."""
    pause: Callable[[float], None]

    def check_enabled(self) -> None:
        """Raises RegistryError when the registry is switched off. Comes before other checks."""
        if not self.enabled:
            raise errors.RegistryError(
                "the registry is switched off by its configuration: set enabled to true to use it"
            )

    def holder(self, pid: Pid, label: str | None = None) -> Holder | None:
        """The process whose death ends a claim. Raises RegistryNotFound when it does not live."""
        label = self.label if label is None else label
        if isinstance(pid, ThisProcess):
            return self.processes.current(label)
        try:
            return None if pid is None else self.processes.of(pid, label)
        except errors.NotFound as error:
            raise errors.RegistryNotFound(error.message, **error.fields) from None

    def read(self, body: Callable[[], T]) -> T:
        """Run a body, with the registry's errors. Runs it again when the store could not be reached
        and certainly nothing was changed.
        """
        self.check_enabled()
        try:
            with registry_errors():
                for _ in range(self.settings.retry_attempts - 1):
                    try:
                        return body()
                    except errors.StoreUnavailable as error:
                        # Not again if the store itself has retried as often, if it is closed, or
                        # if the change may have been committed.
                        final = error.fields.get("tried") or error.fields.get("closed")
                        if final or error.fields.get("outcome") != "none":
                            raise
                    self.pause(self.settings.retry_delay)
                return body()
        except errors.RegistryCorruption as error:
            # Logged too: the caller may not be the person who repairs the store.
            self.logger.error("registry damaged: %s", error.message)
            raise

    def change(self, body: Callable[[], T]) -> T:
        """`read`, for a body that changes something."""
        try:
            return self.read(body)
        finally:
            if self.enabled:
                self.after_change()


class HasContext(Protocol):
    """What has the methods that `reads` and `changes` decorate."""

    _context: NetworkContext


def reads(method: Callable[Concatenate[H, P], T]) -> Callable[Concatenate[H, P], T]:
    """Run a method by `NetworkContext.read`."""

    @wraps(method)
    def run(self: H, /, *args: P.args, **options: P.kwargs) -> T:
        return self._context.read(lambda: method(self, *args, **options))

    return run


def changes(method: Callable[Concatenate[H, P], T]) -> Callable[Concatenate[H, P], T]:
    """Run a method by `NetworkContext.change`.

    No such method calls another one, since both would retry. None takes an iterator: the first try
    would use it up.
    """

    @wraps(method)
    def run(self: H, /, *args: P.args, **options: P.kwargs) -> T:
        return self._context.change(lambda: method(self, *args, **options))

    return run
