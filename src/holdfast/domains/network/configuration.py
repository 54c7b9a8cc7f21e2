"""The configuration of a RegistryManager: a dict, alone or under `registry_manager`."""

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.settings import NetworkSettings

SECTION = "registry_manager"


class RegistryConfig(NetworkSettings, frozen=True, kw_only=True):
    """Where a registry is, and how it behaves. Without `registry_dir` it uses the store of
    `connect()`.
    """

    enabled: bool = True
    registry_dir: str | None = None
    lock_dir: str | None = None
    enable_transaction_log: bool | None = None
    """None: on if there is a `transaction_log_path`."""
    transaction_log_path: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("registry_dir", "lock_dir", "transaction_log_path"):
            value = getattr(self, name)
            if value is not None and (not value or "\0" in value):
                raise InvalidValue(f"{name} is not a path: give one, or leave it out", field=name)
        if self.lock_dir is not None and self.registry_dir is None:
            raise InvalidValue(
                "lock_dir goes with a registry_dir: without one no files show the locks",
                field="lock_dir",
            )

    @property
    def logs_all(self) -> bool:
        """Whether the journal gets every transaction, also those of uncontended locks."""
        if self.enable_transaction_log is None:
            return self.transaction_log_path is not None
        return self.enable_transaction_log


def configured(config: Mapping[str, Any]) -> RegistryConfig:
    """Read a configuration: `{"registry_manager": {...}}`, or the inner dict alone. Keys beside
    `registry_manager` belong to the application and are ignored.

    Raises InvalidValue, naming the key, for one that is unknown or of a wrong type.
    """
    inner = config.get(SECTION) if isinstance(config, Mapping) and SECTION in config else config
    if not isinstance(inner, Mapping):
        raise InvalidValue(
            f"the registry's configuration is not an object: give a dict, or one under {SECTION}",
            field=SECTION,
        )
    try:
        return msgspec.convert(dict(inner), RegistryConfig)
    except msgspec.ValidationError as error:
        raise InvalidValue(
            f"the registry's configuration: {error}. docs/network.md lists every key", field=SECTION
        ) from None
