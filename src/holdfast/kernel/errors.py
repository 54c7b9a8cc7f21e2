"""The one error tree. Each class says how it ends a command and answers an HTTP request.

    HoldfastError
      Refused          the state says no
        NotFound  Ambiguous  Held  Collision  Blocked  Full  EAgain  DeadlockDetected  NotLoaded
        ImpossibleTransition  AgentEnded  StillRunning
        Untrusted      an agent's record points at something that it must not control
          ManifestPathRelative  ManifestMissing  ManifestInvalid  ManifestMismatch
          NotTmuxBacked  TmuxSessionMismatch
          NameNotStated  AgentDefDirMissing  AgentDefDirRelative  AgentDefDirGone
          GenerationMismatch  ProcessDead  TmuxSessionGone  ProcessNotInSession  TargetUnknown
      Lost             stop work now: another has taken over
        LeaseLost  Fenced
      Unavailable      a retry may help
        StoreUnavailable  EnvironmentUnavailable  BrokerUnavailable  UpstreamUnavailable
        AgentGone      an UpstreamUnavailable: the pane is there, the agent's process is not
        NotReceived  Altered    UpstreamUnavailable too: what became of a prompt that was typed
        LockTimeout    a TimeoutError too
      Corrupt          never guess
        RecordInvalid  StoreCorrupt  SchemaTooNew
      Misuse           the caller's own mistake; a ValueError too
        InvalidName  InvalidValue
      RegistryError    the network registry; each kind is also one of those above
        RegistryNotFound  RegistryHeld  RegistryCollision  RegistryDeadlock  RegistryLost
        RegistryLockTimeout  RegistryCorruption  RegistryUnavailable

A message says what failed, why (who holds it), and what to do next. Fields carry the same facts for
programs. Every error survives pickling with its message, code and fields.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec import Struct


class Status(Struct, frozen=True):
    """How an error ends a command and answers an HTTP request."""

    exit: int
    http: int


EXIT_DONE = 0
EXIT_NOTHING_TO_TAKE = 3
"""Not an error: the queue was empty."""
EXIT_BUG = 70
"""EX_SOFTWARE of sysexits.h: nothing that a script could deal with."""

STATUS: dict[str, Status] = {}
"""By code. An exit status is 0 for done, 1 not found or an impossible status, 2 usage, 3 nothing to
take, 4 refused or lost, 5 timed out, 6 unavailable, 7 corrupt.
"""


class HoldfastError(Exception):
    """The root of everything that Holdfast raises on purpose."""

    code: ClassVar[str] = "error"
    status: ClassVar[Status] = Status(6, 500)

    def __init_subclass__(cls, *, code: str | None = None, status: Status | None = None) -> None:
        # Not set where it is inherited: RegistryHeld gets that of Held, not that of RegistryError.
        if status is not None:
            cls.status = status
        if code is not None:
            cls.code = code
            STATUS[code] = cls.status

    def __init__(self, message: str, /, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields: Mapping[str, Any] = fields

    def __reduce__(self) -> Any:
        return (_rebuild, (type(self), self.message, dict(self.fields)))


STATUS[HoldfastError.code] = HoldfastError.status


def _rebuild(kind: type[HoldfastError], message: str, fields: dict[str, Any]) -> HoldfastError:
    return kind(message, **fields)


class Refused(HoldfastError, code="refused", status=Status(4, 409)):
    """The state says no; nothing was changed."""


class NotFound(Refused, code="not_found", status=Status(1, 404)):
    """There is no such record."""


class Ambiguous(Refused, code="ambiguous"):
    """Several records have that name."""


class Held(Refused, code="held"):
    """Another live holder has it."""


class Collision(Refused, code="collision"):
    """It would share what must be unique."""


class Blocked(Refused, code="blocked"):
    """An operator must decide first."""


class Full(Refused, code="full", status=Status(4, 429)):
    """A bound of limits.py is reached."""


class EAgain(Refused, code="eagain"):
    """Something in progress forbids it now."""


class DeadlockDetected(Refused, code="deadlock"):
    """Waiting would close a cycle; the fields name it."""


class NotLoaded(Refused, code="not_loaded"):
    """The work needs another recipe than the loaded one, or that is unknown."""


class ImpossibleTransition(Refused, code="impossible_transition", status=Status(1, 409)):
    """The record's state machine has no such step."""


class Untrusted(Refused, code="untrusted"):
    """What an agent's record points at cannot be trusted, so it controls nothing."""


class ManifestPathRelative(Untrusted, code="manifest_path_relative"):
    """The record's manifest path is not absolute."""


class ManifestMissing(Untrusted, code="manifest_missing"):
    """There is no file at the record's manifest path."""


class ManifestInvalid(Untrusted, code="manifest_invalid"):
    """The manifest cannot be read, or does not decode under its model."""


class ManifestMismatch(Untrusted, code="manifest_mismatch"):
    """The manifest belongs to another agent."""


class NotTmuxBacked(Untrusted, code="not_tmux_backed"):
    """The manifest's backend does not run in tmux."""


class TmuxSessionMismatch(Untrusted, code="tmux_session_mismatch"):
    """The manifest names another tmux session than the record, or none."""


class GenerationMismatch(Untrusted, code="generation_mismatch"):
    """The manifest belongs to another generation than the record."""


class ProcessDead(Untrusted, code="process_dead"):
    """The process that the record names is dead."""


class TmuxSessionGone(Untrusted, code="tmux_session_gone"):
    """There is no tmux session of that name with a live pane."""


class ProcessNotInSession(Untrusted, code="process_not_in_session"):
    """The record's process lives, but not in the tmux session, which is another's."""


class TargetUnknown(Untrusted, code="target_unknown"):
    """From here it is unknown whether the record's process is in the tmux session."""


class NameNotStated(Untrusted, code="name_not_stated"):
    """A tmux session's name was given, from which no agent's name is inferred."""


class AgentDefDirMissing(Untrusted, code="agent_def_dir_missing"):
    """Neither the record nor the caller names the agent definition folder."""


class AgentDefDirRelative(Untrusted, code="agent_def_dir_relative"):
    """The path of the agent definition folder is not absolute."""


class AgentDefDirGone(Untrusted, code="agent_def_dir_gone"):
    """The agent definition folder does not exist."""


class AgentEnded(Refused, code="agent_ended", status=Status(1, 409)):
    """The agent's program ended at its start; its record and tmux session are removed."""


class StillRunning(Refused, code="still_running"):
    """Processes that should have ended still run, or cannot be ended from here."""


class Lost(HoldfastError, code="lost", status=Status(4, 409)):
    """The caller no longer holds what it acts for, and must stop work now."""


class LeaseLost(Lost, code="lease_lost"):
    """The lease ended, or another took over."""


class Fenced(Lost, code="fenced", status=Status(4, 412)):
    """The token is not the current one; nothing was changed."""


class Unavailable(HoldfastError, code="unavailable", status=Status(6, 503)):
    """A part that is needed does not answer; a retry may help. The field `outcome` is "none" when
    the call certainly changed nothing, and "unknown" when it may have taken effect.
    """


class StoreUnavailable(Unavailable, code="store_unavailable"):
    """The store cannot be reached, opened or written."""


class EnvironmentUnavailable(Unavailable, code="environment_unavailable"):
    """This machine lacks something besides the store: /proc, or a folder of a gateway or a log."""


class LockTimeout(Unavailable, TimeoutError, code="lock_timeout", status=Status(5, 504)):
    """The time limit passed before this caller's turn; nothing was changed. As a TimeoutError it is
    an OSError too: `except OSError` around a call that may wait catches it.
    """


class BrokerUnavailable(Unavailable, code="broker_unavailable"):
    """The message broker does not answer."""


class UpstreamUnavailable(Unavailable, code="upstream_unavailable"):
    """The agent behind a gateway does not answer."""


class AgentGone(UpstreamUnavailable, code="agent_gone"):
    """The agent's process has ended, or is not in its pane; the field `reason` says which."""


class NotReceived(UpstreamUnavailable, code="not_received"):
    """A prompt was typed, and the agent does not report that it has received it."""


class Altered(UpstreamUnavailable, code="altered"):
    """A prompt was mixed with what somebody typed; `outcome` says whether the agent took it."""


class Corrupt(HoldfastError, code="corrupt", status=Status(7, 500)):
    """Stored data cannot be trusted, and is not guessed at."""


class RecordInvalid(Corrupt, code="record_invalid"):
    """A record does not decode under its model."""


class StoreCorrupt(Corrupt, code="store_corrupt"):
    """The store is damaged, or is no store."""


class SchemaTooNew(Corrupt, code="schema_too_new"):
    """A newer version of this program wrote it."""


class Misuse(HoldfastError, ValueError, code="misuse", status=Status(2, 422)):
    """The caller's input is wrong; storage was not touched."""


class InvalidName(Misuse, code="invalid_name"):
    """A name that cannot be a key."""


class InvalidValue(Misuse, code="invalid_value"):
    """A value that its field does not allow."""


class RegistryError(HoldfastError, code="registry_error"):
    """The registry of hosts, routers and neighbours refused or failed."""


class RegistryNotFound(RegistryError, NotFound, ValueError, code="registry_not_found"):
    """There is no such host or lease; a ValueError, as callers of a registry expect."""


class RegistryHeld(RegistryError, Held, code="registry_held"):
    """Other runs hold the host, or another job the router."""


class RegistryCollision(RegistryError, Collision, code="registry_collision"):
    """There is a host with that name, address or MAC."""


class RegistryDeadlock(RegistryError, DeadlockDetected, code="registry_deadlock"):
    """Waiting for the router would close a cycle; the fields name it."""


class RegistryLost(RegistryError, LeaseLost, code="registry_lost"):
    """The router was taken away from the job: stop work on it now."""


class RegistryLockTimeout(RegistryError, LockTimeout, code="registry_lock_timeout"):
    """A router, or the registry, was not acquired in time; nothing was changed."""


class RegistryCorruption(RegistryError, StoreCorrupt, code="registry_corruption"):
    """The registry's data cannot be read, and is not guessed at."""


class RegistryUnavailable(RegistryError, StoreUnavailable, code="registry_unavailable"):
    """The registry's store cannot be reached or written."""


def status_of(error: HoldfastError) -> Status:
    """The exit and HTTP status of an error."""
    return STATUS[error.code]
