"""The one error tree, and the one table from a code to an exit status and an HTTP status.

    HoldfastError
      Refused          the state says no
        NotFound  Ambiguous  Held  Collision  Blocked  Full  EAgain  DeadlockDetected  NotLoaded
        ImpossibleTransition  AgentEnded  StillRunning
        Untrusted      an agent's record leads to something that must not be controlled by it
          ManifestPathRelative  ManifestMissing  ManifestInvalid  ManifestMismatch
          NotTmuxBacked  TmuxSessionMismatch
          NameNotStated  AgentDefDirMissing  AgentDefDirRelative  AgentDefDirGone
          GenerationMismatch  ProcessDead  TmuxSessionGone  ProcessNotInSession  TargetUnknown
      Lost             stop work now: another has taken over
        LeaseLost  Fenced
      Unavailable      trying again may help
        StoreUnavailable  EnvironmentUnavailable  BrokerUnavailable  UpstreamUnavailable
        AgentGone      an UpstreamUnavailable: its place is there, and its own process is not in it
        LockTimeout    a TimeoutError too
      Corrupt          never guess
        RecordInvalid  StoreCorrupt  SchemaTooNew
      Misuse           the caller's own mistake; a ValueError too
        InvalidName  InvalidValue
      RegistryError    the network registry; each kind is also one of those above
        RegistryNotFound  RegistryHeld  RegistryCollision  RegistryDeadlock  RegistryLost
        RegistryLockTimeout  RegistryCorruption  RegistryUnavailable

A message says what was wrong, who holds it where that is known, and what to do next. Fields carry
the same facts for programs. Every error survives pickling with its message, code and fields.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple


class HoldfastError(Exception):
    """The root of everything Holdfast raises on purpose."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str, /, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields: Mapping[str, Any] = fields

    def __reduce__(self) -> Any:
        return (_rebuild, (type(self), self.message, dict(self.fields)))


def _rebuild(kind: type[HoldfastError], message: str, fields: dict[str, Any]) -> HoldfastError:
    return kind(message, **fields)


class Refused(HoldfastError):
    """The state says no; nothing was changed."""

    code = "refused"


class NotFound(Refused):
    """There is no such record."""

    code = "not_found"


class Ambiguous(Refused):
    """More than one record answers to that name."""

    code = "ambiguous"


class Held(Refused):
    """Another live holder has it."""

    code = "held"


class Collision(Refused):
    """It would share what must be unique."""

    code = "collision"


class Blocked(Refused):
    """An operator must decide first."""

    code = "blocked"


class Full(Refused):
    """A bound named in limits.py is reached."""

    code = "full"


class EAgain(Refused):
    """Something in progress forbids it at this moment."""

    code = "eagain"


class DeadlockDetected(Refused):
    """Waiting would close a cycle; the fields name it."""

    code = "deadlock"


class NotLoaded(Refused):
    """Work would begin on another recipe than its own, or on an unknown one."""

    code = "not_loaded"


class ImpossibleTransition(Refused):
    """The record's state machine has no such step."""

    code = "impossible_transition"


class Untrusted(Refused):
    """What an agent's record points at cannot be trusted, so nothing is controlled by it."""

    code = "untrusted"


class ManifestPathRelative(Untrusted):
    """The record's manifest path is not absolute."""

    code = "manifest_path_relative"


class ManifestMissing(Untrusted):
    """There is no file at the record's manifest path."""

    code = "manifest_missing"


class ManifestInvalid(Untrusted):
    """The manifest cannot be read, or does not decode under its model."""

    code = "manifest_invalid"


class ManifestMismatch(Untrusted):
    """The manifest is that of another agent."""

    code = "manifest_mismatch"


class NotTmuxBacked(Untrusted):
    """The manifest's backend does not run in tmux."""

    code = "not_tmux_backed"


class TmuxSessionMismatch(Untrusted):
    """The manifest names another tmux session than the record, or none."""

    code = "tmux_session_mismatch"


class GenerationMismatch(Untrusted):
    """The manifest is that of another generation than the record."""

    code = "generation_mismatch"


class ProcessDead(Untrusted):
    """The process that the record names is dead."""

    code = "process_dead"


class TmuxSessionGone(Untrusted):
    """There is no tmux session of that name with a live pane."""

    code = "tmux_session_gone"


class ProcessNotInSession(Untrusted):
    """The process that the record names lives, but not in the tmux session: that is another's."""

    code = "process_not_in_session"


class TargetUnknown(Untrusted):
    """It cannot be seen from here whether the process that the record names is in the tmux
    session.
    """

    code = "target_unknown"


class NameNotStated(Untrusted):
    """A tmux session's name was given, from which no agent's name is inferred."""

    code = "name_not_stated"


class AgentDefDirMissing(Untrusted):
    """An agent definition folder is needed, and neither the record nor the caller names one."""

    code = "agent_def_dir_missing"


class AgentDefDirRelative(Untrusted):
    """The agent definition folder's path is not absolute."""

    code = "agent_def_dir_relative"


class AgentDefDirGone(Untrusted):
    """The agent definition folder is not there."""

    code = "agent_def_dir_gone"


class AgentEnded(Refused):
    """The agent's program ended as soon as it had begun; its record and tmux session are
    removed.
    """

    code = "agent_ended"


class StillRunning(Refused):
    """Processes that should have ended still run, or cannot be ended from here."""

    code = "still_running"


class Lost(HoldfastError):
    """The caller no longer holds what it acts for; it must stop work now."""

    code = "lost"


class LeaseLost(Lost):
    """The lease ended or was taken over."""

    code = "lease_lost"


class Fenced(Lost):
    """The token shown is not the current one; nothing was changed."""

    code = "fenced"


class Unavailable(HoldfastError):
    """A part that is needed does not answer; trying again may help.

    The field `outcome` is "none" when the call certainly changed nothing and "unknown" when it may
    have taken effect.
    """

    code = "unavailable"


class StoreUnavailable(Unavailable):
    """The store cannot be reached, opened or written."""

    code = "store_unavailable"


class EnvironmentUnavailable(Unavailable):
    """This machine lacks what Holdfast needs besides the store: /proc, or a folder of a gateway, a
    server or a log.
    """

    code = "environment_unavailable"


class LockTimeout(Unavailable, TimeoutError):
    """The time limit passed before it was this caller's turn; nothing was changed.

    A TimeoutError too, as callers of a lock expect, and by that an OSError: `except OSError` around
    a call that may wait catches it.
    """

    code = "lock_timeout"


class BrokerUnavailable(Unavailable):
    """The message broker does not answer."""

    code = "broker_unavailable"


class UpstreamUnavailable(Unavailable):
    """The agent behind a gateway does not answer."""

    code = "upstream_unavailable"


class AgentGone(UpstreamUnavailable):
    """The agent's own process has ended, or is not in the pane in which it would be prompted;
    `reason` says which.
    """

    code = "agent_gone"


class Corrupt(HoldfastError):
    """What is stored cannot be trusted, and is not guessed at."""

    code = "corrupt"


class RecordInvalid(Corrupt):
    """One record does not decode under its model."""

    code = "record_invalid"


class StoreCorrupt(Corrupt):
    """The store itself is damaged, or is not a store."""

    code = "store_corrupt"


class SchemaTooNew(Corrupt):
    """It was written by a newer version of this program."""

    code = "schema_too_new"


class Misuse(HoldfastError, ValueError):
    """The caller's input is wrong; storage was not touched."""

    code = "misuse"


class InvalidName(Misuse):
    """A name that cannot be a key."""

    code = "invalid_name"


class InvalidValue(Misuse):
    """A value outside what its field allows."""

    code = "invalid_value"


class RegistryError(HoldfastError):
    """The registry of hosts, routers and neighbours refused or failed."""

    code = "registry_error"


class RegistryNotFound(RegistryError, NotFound, ValueError):
    """There is no such host or lease; a ValueError too, as callers of a registry expect."""

    code = "registry_not_found"


class RegistryHeld(RegistryError, Held):
    """Other runs hold the host, or another job the router."""

    code = "registry_held"


class RegistryCollision(RegistryError, Collision):
    """A host of that name, address or MAC is there already."""

    code = "registry_collision"


class RegistryDeadlock(RegistryError, DeadlockDetected):
    """Waiting for the router would close a cycle; the fields name it."""

    code = "registry_deadlock"


class RegistryLost(RegistryError, LeaseLost):
    """The router was taken away from the job: stop work on it now."""

    code = "registry_lost"


class RegistryLockTimeout(RegistryError, LockTimeout):
    """A router, or the registry itself, could not be acquired in time; nothing was changed."""

    code = "registry_lock_timeout"


class RegistryCorruption(RegistryError, StoreCorrupt):
    """What the registry keeps cannot be read, and is not guessed at."""

    code = "registry_corruption"


class RegistryUnavailable(RegistryError, StoreUnavailable):
    """The registry's store cannot be reached or written."""

    code = "registry_unavailable"


class Status(NamedTuple):
    """How a code ends a command and answers an HTTP request."""

    exit: int
    http: int


EXIT_DONE = 0
EXIT_NOTHING_TO_TAKE = 3
"""Not an error: the queue was empty."""

STATUS: Mapping[str, Status] = {
    "error": Status(6, 500),
    "refused": Status(4, 409),
    "not_found": Status(1, 404),
    "ambiguous": Status(4, 409),
    "held": Status(4, 409),
    "collision": Status(4, 409),
    "blocked": Status(4, 409),
    "full": Status(4, 429),
    "eagain": Status(4, 409),
    "deadlock": Status(4, 409),
    "not_loaded": Status(4, 409),
    "impossible_transition": Status(1, 409),
    "untrusted": Status(4, 409),
    "manifest_path_relative": Status(4, 409),
    "manifest_missing": Status(4, 409),
    "manifest_invalid": Status(4, 409),
    "manifest_mismatch": Status(4, 409),
    "not_tmux_backed": Status(4, 409),
    "tmux_session_mismatch": Status(4, 409),
    "generation_mismatch": Status(4, 409),
    "process_dead": Status(4, 409),
    "tmux_session_gone": Status(4, 409),
    "process_not_in_session": Status(4, 409),
    "target_unknown": Status(4, 409),
    "name_not_stated": Status(4, 409),
    "agent_def_dir_missing": Status(4, 409),
    "agent_def_dir_relative": Status(4, 409),
    "agent_def_dir_gone": Status(4, 409),
    "agent_ended": Status(1, 409),
    "still_running": Status(4, 409),
    "lost": Status(4, 409),
    "lease_lost": Status(4, 409),
    "fenced": Status(4, 412),
    "unavailable": Status(6, 503),
    "store_unavailable": Status(6, 503),
    "environment_unavailable": Status(6, 503),
    "lock_timeout": Status(5, 504),
    "broker_unavailable": Status(6, 503),
    "upstream_unavailable": Status(6, 503),
    "agent_gone": Status(6, 503),
    "corrupt": Status(7, 500),
    "record_invalid": Status(7, 500),
    "store_corrupt": Status(7, 500),
    "schema_too_new": Status(7, 500),
    "misuse": Status(2, 422),
    "invalid_name": Status(2, 422),
    "invalid_value": Status(2, 422),
    "registry_error": Status(6, 500),
    "registry_not_found": Status(1, 404),
    "registry_held": Status(4, 409),
    "registry_collision": Status(4, 409),
    "registry_deadlock": Status(4, 409),
    "registry_lost": Status(4, 409),
    "registry_lock_timeout": Status(5, 504),
    "registry_corruption": Status(7, 500),
    "registry_unavailable": Status(6, 503),
}
"""Exit statuses: 0 done, 1 not found or not a possible status, 2 usage, 3 nothing to take, 4
refused or lost, 5 timed out, 6 unavailable, 7 corrupt.
"""


def status_of(error: HoldfastError) -> Status:
    """Return the exit and HTTP status of an error; every code of the tree has a row."""
    return STATUS[error.code]
