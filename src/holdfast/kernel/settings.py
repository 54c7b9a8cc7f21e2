"""Settings: from the caller, the environment, the nearest holdfast.toml, then the defaults; the first that speaks wins.

Finding and reading the file is `app`'s; what its keys mean is here. docs/settings.md lists them all.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from holdfast.kernel.codec import Value
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.limits import JOURNAL_KEEP_ENTRIES, JOURNAL_KEEP_S, LOCK_LEASE_S, LOCK_PRIORITY_AGE_S
from holdfast.kernel.names import check_id, check_label

FILE_NAME = "holdfast.toml"
DEFAULT_NAMESPACE = "default"


class JournalSettings(Value, frozen=True, kw_only=True):
    """How much of the journal is kept."""

    keep_entries: int = JOURNAL_KEEP_ENTRIES
    keep_s: float = JOURNAL_KEEP_S

    def __post_init__(self) -> None:
        super().__post_init__()
        # TOML can say nan and inf.
        if self.keep_entries < 1 or not 0 < self.keep_s < float("inf"):
            raise InvalidValue("journal.keep_entries and journal.keep_s must be positive numbers")


class LockSettings(Value, frozen=True, kw_only=True):
    """How locks are leased, ordered and told of."""

    lease_s: float = LOCK_LEASE_S
    priority_age_s: float = LOCK_PRIORITY_AGE_S
    journal: Literal["contended", "all"] = "contended"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.lease_s < float("inf") or not 0 < self.priority_age_s < float("inf"):
            raise InvalidValue("locks.lease_s and locks.priority_age_s must be positive numbers")


class Settings(Value, frozen=True, kw_only=True):
    """All settings. `store` None means the default place, which depends on the machine."""

    store: str | None = None
    namespace: str = DEFAULT_NAMESPACE
    actor: str | None = None
    host_id: str | None = None
    gateway_root: str | None = None
    journal: JournalSettings = JournalSettings()
    locks: LockSettings = LockSettings()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_id(self.namespace, "namespace")
        for name, label in (("actor", self.actor), ("host_id", self.host_id)):
            if label is not None:
                check_label(label, name)


ENVIRONMENT = {
    "HOLDFAST_STORE": "store",
    "HOLDFAST_NAMESPACE": "namespace",
    "HOLDFAST_ACTOR": "actor",
    "HOLDFAST_HOST_ID": "host_id",
    "HOLDFAST_GATEWAY_ROOT": "gateway_root",
}
"""Which variable of the environment sets which key."""


def resolve(
    *, given: Mapping[str, str | None], environment: Mapping[str, str], document: Mapping[str, Any], source: str
) -> Settings:
    """Put settings together: `given` by the caller, else the environment, else the document of the file `source`.

    Raises InvalidValue for an unknown key or a wrong type, naming the key and the file.
    """
    try:
        settings = msgspec.convert(dict(document), Settings)
    except msgspec.ValidationError as error:
        raise InvalidValue(f"{source}: {error}. docs/settings.md lists every setting", source=source) from None
    named = {key: environment[name] for name, key in ENVIRONMENT.items() if environment.get(name)}
    named.update({key: value for key, value in given.items() if value})
    return msgspec.structs.replace(settings, **named)
