"""The result of a check, how bad it is, and running a check within a time limit."""

import enum
import re
import threading
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from holdfast.kernel.codec import Value
from holdfast.kernel.errors import STATUS, HoldfastError


class Severity(enum.StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    """It works, and needs attention."""
    FAIL = "fail"
    """It does not work, or is not safe."""


class Finding(Value, frozen=True, kw_only=True):
    """What one check found about one thing. `fix` says what to do; `code` is the error code of a
    failure.
    """

    check: str = ""
    verdict: Severity
    says: str
    fix: str = ""
    code: str = ""


Check = Callable[[], Iterable[Finding]]
"""Returns what it found. A HoldfastError or OSError that it raises becomes a finding too."""

# Three dots do not end a sentence.
_SENTENCE = re.compile(r"(.*[^.])\. (.*)", re.DOTALL)
_COLON = re.compile(r"(.+): (.*)", re.DOTALL)


def ok(says: str) -> Finding:
    return Finding(verdict=Severity.OK, says=says)


def warn(says: str, fix: str) -> Finding:
    return Finding(verdict=Severity.WARN, says=says, fix=fix)


def fail(says: str, fix: str, code: str) -> Finding:
    return Finding(verdict=Severity.FAIL, says=says, fix=fix, code=code)


def failed(error: HoldfastError) -> Finding:
    """An error as a finding. The last sentence of its message, or what follows the last colon, says
    what to do.
    """
    parts = _SENTENCE.match(error.message) or _COLON.match(error.message)
    says, fix = (parts[1], parts[2]) if parts else (error.message, "")
    return fail(says, fix, error.code)


def within(limit_s: float, name: str, check: Check) -> list[Finding]:
    """What a check finds within a time limit. A check that hangs is reported and left behind."""
    timeout = "look at what it waits for: a disk, a server or a stopped process"
    found = [fail(f"it could not be checked within {limit_s:g} s", timeout, "lock_timeout")]

    def run() -> None:
        nonlocal found
        try:
            found = list(check())
        except HoldfastError as error:
            found = [failed(error)]
        except OSError as error:
            says = f"{error.filename or name}: {error.strerror}"
            found = [fail(says, "let this user read it", "unavailable")]

    # A daemon: a thread that hangs in the kernel cannot be ended, and the program must end.
    thread = threading.Thread(target=run, daemon=True, name=f"holdfast-doctor-{name}")
    thread.start()
    thread.join(limit_s)
    return [replace(finding, check=name) for finding in found]


def exit_status(findings: Iterable[Finding]) -> int:
    """0 unless something fails; then the highest exit status of the failures."""
    codes = (finding.code for finding in findings if finding.verdict is Severity.FAIL)
    return max((STATUS[code].exit for code in codes), default=0)
