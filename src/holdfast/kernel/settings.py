"""The settings that docs/settings.md describes, and which of several sources they are from."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.limits import (
    AGENT_LEASE_S,
    FILES_RETRY_ATTEMPTS,
    FILES_RETRY_DELAY_S,
    JOB_LEASE_S,
    JOBS_KEEP,
    JOBS_KEEP_S,
    JOURNAL_KEEP_ENTRIES,
    JOURNAL_KEEP_S,
    LOCK_JOURNAL_WAITS_S,
    LOCK_LEASE_S,
    LOCK_PRIORITY_AGE_S,
    LOCK_PRIORITY_MAX,
    RETRY_ATTEMPTS,
    RETRY_DELAY_S,
    STANDBY_AFTER_S,
)
from holdfast.kernel.names import check_id, check_label, check_new_label

FILE_NAME = "holdfast.toml"
DEFAULT_NAMESPACE = "default"
_SECONDS = "a positive number of seconds"


class JournalSettings(Plain, frozen=True, kw_only=True):
    """How much of the journal is kept."""

    keep_entries: int = JOURNAL_KEEP_ENTRIES
    keep_s: float = JOURNAL_KEEP_S

    def __post_init__(self) -> None:
        if self.keep_entries < 1:
            raise _refusal("journal.keep_entries", self.keep_entries, "1 or more")
        # TOML can say nan and inf.
        if not 0 < self.keep_s < float("inf"):
            raise _refusal("journal.keep_s", self.keep_s, _SECONDS)


class LockSettings(Plain, frozen=True, kw_only=True):
    """How locks are leased, ordered and journalled."""

    lease_s: float = LOCK_LEASE_S
    priority_age_s: float = LOCK_PRIORITY_AGE_S
    journal: Literal["contended", "all"] = "contended"
    journal_waits_s: float = LOCK_JOURNAL_WAITS_S
    """Shorter waits are counted and not journalled, unless `journal` is "all"."""
    standby_after_s: float = STANDBY_AFTER_S
    """When a `locks run` that only waits for its command gives its memory back; infinite: never."""

    @property
    def report_waits_s(self) -> float | None:
        """How long a waiter waits before it journals that; None: its request did."""
        return None if self.journal == "all" else self.journal_waits_s or None

    def __post_init__(self) -> None:
        if not self.standby_after_s >= 0:
            raise _refusal("locks.standby_after_s", self.standby_after_s, "0 seconds or more")
        if not 0 <= self.journal_waits_s < float("inf"):
            raise _refusal("locks.journal_waits_s", self.journal_waits_s, "0 seconds or more")
        if not 0 < self.lease_s < float("inf"):
            raise _refusal("locks.lease_s", self.lease_s, _SECONDS)
        if not 0 < self.priority_age_s < float("inf"):
            raise _refusal("locks.priority_age_s", self.priority_age_s, _SECONDS)


class FilesSettings(Plain, frozen=True, kw_only=True):
    """The folder of each domain in the files store, and its retries."""

    folders: dict[str, str] = msgspec.field(default_factory=dict)
    retry_attempts: int = FILES_RETRY_ATTEMPTS
    retry_delay_s: float = FILES_RETRY_DELAY_S

    def __post_init__(self) -> None:
        for name, path in self.folders.items():
            check_id(name, "folder")
            if not path or "\0" in path:
                raise _refusal(f"files.folders.{name}", repr(path), "the path of a folder")
        if not 1 <= self.retry_attempts <= 100:
            raise _refusal("files.retry_attempts", self.retry_attempts, "1 to 100")
        if not 0 <= self.retry_delay_s <= 60:
            raise _refusal("files.retry_delay_s", self.retry_delay_s, "0 to 60 seconds")


class LockTimeouts(Plain, frozen=True, kw_only=True):
    """The time limit of each kind of registry operation, in seconds; for routers, of a lock."""

    host_registry: float = 5.0
    host_leases: float = 3.0
    router_lock: float = 30.0
    router_lock_atomic: float = 60.0
    neighbor_leases: float = 3.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not 0 <= (limit_s := getattr(self, name)) < float("inf"):
                raise _refusal(f"lock_timeouts.{name}", limit_s, "0 seconds or more")


JOB_TYPES = ("quick", "detailed")
"""What a run does with a host: a quick look, or work that nobody may disturb."""


class NetworkSettings(Plain, frozen=True, kw_only=True):
    """The registry of hosts, routers and neighbours."""

    lock_timeouts: LockTimeouts = LockTimeouts()
    retry_attempts: int = RETRY_ATTEMPTS
    retry_delay: float = RETRY_DELAY_S
    require_router_lock: bool = False
    ip_uniqueness: Literal["global", "router"] = "global"
    """Where an address must be unique: in the whole registry, or among one router's hosts."""
    job_priorities: dict[str, int] = msgspec.field(default_factory=dict)
    lease_ttl_s: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.retry_attempts <= 100:
            raise _refusal("retry_attempts", self.retry_attempts, "1 to 100")
        if not 0 <= self.retry_delay <= 60:
            raise _refusal("retry_delay", self.retry_delay, "0 to 60 seconds")
        if self.lease_ttl_s is not None and not 0 < self.lease_ttl_s < float("inf"):
            raise _refusal("lease_ttl_s", self.lease_ttl_s, f"{_SECONDS}, or leave it out")
        for job_type, priority in self.job_priorities.items():
            if job_type not in JOB_TYPES:
                raise InvalidValue(
                    f"job_priorities.{ascii(job_type)[1:41]} is not a job type: use "
                    f"{' or '.join(JOB_TYPES)}",
                    field="job_priorities",
                )
            if not -LOCK_PRIORITY_MAX <= priority <= LOCK_PRIORITY_MAX:
                raise InvalidValue(
                    f"job_priorities.{job_type} is {priority}: use -{LOCK_PRIORITY_MAX} to "
                    f"{LOCK_PRIORITY_MAX}",
                    field="job_priorities",
                )


class AgentSettings(Plain, frozen=True, kw_only=True):
    """How agents are named and leased. An adopted registry keeps its names by its prefix, and its
    programs read what is published here by the version of its records.
    """

    prefix: Literal["HOLDFAST-", "HOUMAO-", ""] = "HOLDFAST-"
    record_version: Literal[2, 3] = 2
    names: Literal["shared", "exclusive"] = "shared"
    lease_s: float = AGENT_LEASE_S

    def __post_init__(self) -> None:
        if not 0 < self.lease_s < float("inf"):
            raise _refusal("agents.lease_s", self.lease_s, _SECONDS)


class GatewaySettings(Plain, frozen=True, kw_only=True):
    """How prompts reach agents. With `name_sender` each begins with its sender, as in `[from
    boss]`.
    """

    name_sender: bool = False


class JobSettings(Plain, frozen=True, kw_only=True):
    """How long jobs are kept, where the audit log is, and how long an unknown worker counts."""

    keep_finished: int = JOBS_KEEP
    keep_s: float = JOBS_KEEP_S
    logs: str | None = None
    """None: beside the store."""
    lease_s: float = JOB_LEASE_S

    def __post_init__(self) -> None:
        if self.keep_finished < 0:
            raise _refusal("jobs.keep_finished", self.keep_finished, "0 or more")
        if not 0 < self.keep_s < float("inf"):
            raise _refusal("jobs.keep_s", self.keep_s, _SECONDS)
        if not 0 < self.lease_s < float("inf"):
            raise _refusal("jobs.lease_s", self.lease_s, _SECONDS)


class McpSettings(Plain, frozen=True, kw_only=True):
    """What an agent may do to others over MCP: start the tools of these profiles, and stop those
    agents that it has started, or any.
    """

    may_start: tuple[str, ...] = ()
    may_stop: Literal["own", "any"] = "own"

    def __post_init__(self) -> None:
        for name in self.may_start:
            check_id(name, "name of a profile")


class Settings(Plain, frozen=True, kw_only=True):
    """All settings. `store` None: the default place of this machine."""

    store: str | None = None
    namespace: str = DEFAULT_NAMESPACE
    actor: str | None = None
    host_id: str | None = None
    group: str | None = None
    gateway_root: str | None = None
    journal: JournalSettings = JournalSettings()
    locks: LockSettings = LockSettings()
    files: FilesSettings = FilesSettings()
    network: NetworkSettings = NetworkSettings()
    agents: AgentSettings = AgentSettings()
    gateway: GatewaySettings = GatewaySettings()
    jobs: JobSettings = JobSettings()
    mcp: McpSettings = McpSettings()

    def __post_init__(self) -> None:
        check_id(self.namespace, "namespace")
        for name, label in (("host_id", self.host_id), ("group", self.group)):
            if label is not None:
                check_label(label, name)
        if self.actor is not None:
            check_new_label(self.actor, "actor")


ENVIRONMENT = {
    "HOLDFAST_STORE": "store",
    "HOLDFAST_NAMESPACE": "namespace",
    "HOLDFAST_ACTOR": "actor",
    "HOLDFAST_HOST_ID": "host_id",
    "HOLDFAST_GROUP": "group",
    "HOLDFAST_GATEWAY_ROOT": "gateway_root",
}
"""Environment variables and the keys that they set."""


def resolve(
    *,
    given: Mapping[str, str | None],
    environment: Mapping[str, str],
    document: Mapping[str, Any],
    source: str,
) -> Settings:
    """The settings that are `given`, else in the environment, else in the document `source`."""
    try:
        settings = msgspec.convert(dict(document), Settings)
    except msgspec.ValidationError as error:
        raise InvalidValue(
            f"{source}: {error}. docs/settings.md lists every setting", source=source
        ) from None
    named = {key: environment[name] for name, key in ENVIRONMENT.items() if environment.get(name)}
    named.update({key: value for key, value in given.items() if value})
    return msgspec.structs.replace(settings, **named)


def _refusal(name: str, value: float | str, wanted: str) -> InvalidValue:
    return InvalidValue(f"{name} is {value}: give {wanted}", field=name.rpartition(".")[2])
