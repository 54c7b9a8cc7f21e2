"""What every call of the registry goes through: is it switched on, trying again, the registry's own errors, followers."""

import logging
from collections.abc import Callable
from typing import TypeVar

from holdfast.domains.network.room import Room, told_as_registry
from holdfast.kernel.errors import RegistryCorruption, RegistryError
from holdfast.kernel.settings import NetworkSettings

T = TypeVar("T")


class Calls:
    """The part of `Registry` that knows no host and no router."""

    def __init__(self, room: Room, *, logger: logging.Logger | None, enabled: bool, after_change: Callable[[], None]) -> None:
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
        """Before anything that was given is looked at: what is switched off has no opinion of it."""
        if not self._enabled:
            raise RegistryError("the registry is switched off by its configuration: set enabled to true to use it")

    def _look(self, body: Callable[[], T]) -> T:
        self._refuse_if_off()
        try:
            with told_as_registry():
                return self._room.tried(body)
        except RegistryCorruption as error:
            # Told to the caller once, who may not be the one that reads the log.
            self._logger.error("registry damaged: %s", error.message)
            raise
