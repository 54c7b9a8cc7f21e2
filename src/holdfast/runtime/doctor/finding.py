"""The result of a check, and how bad it is."""

import enum
import re
from collections.abc import Callable, Iterable

from holdfast.kernel.codec import Value
from holdfast.kernel.errors import STATUS, HoldfastError


class Verdict(enum.StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    """It works, and needs attention."""
    FAIL = "fail"
    """It does not work, or is not safe."""


class Finding(Value, frozen=True, kw_only=True):
    """What one check found about one thing. `fix` says what to do; `code` is the error code of a
    failure. The examination fills in `check`.
    """

    check: str = ""
    verdict: Verdict
    says: str
    fix: str = ""
    code: str = ""


Check = Callable[[], Iterable[Finding]]
"""Returns what it found. A HoldfastError or OSError that it raises becomes a finding too."""


def ok(says: str) -> Finding:
    return Finding(verdict=Verdict.OK, says=says)


def warn(says: str, fix: str) -> Finding:
    return Finding(verdict=Verdict.WARN, says=says, fix=fix)


def fail(says: str, fix: str, code: str) -> Finding:
    return Finding(verdict=Verdict.FAIL, says=says, fix=fix, code=code)


# Three dots end no sentence.
_SENTENCE = re.compile(r"(.*[^.])\. (.*)", re.DOTALL)
_COLON = re.compile(r"(.+): (.*)", re.DOTALL)


def failed(error: HoldfastError) -> Finding:
    """An error as a finding. Its message ends with what to do, as a sentence of its own or behind a
    colon.
    """
    parts = _SENTENCE.match(error.message) or _COLON.match(error.message)
    says, fix = (parts[1], parts[2]) if parts else (error.message, "")
    return fail(says, fix, error.code)


def exit_status(findings: Iterable[Finding]) -> int:
    """0 unless something fails; then the highest exit status of the failures."""
    return max(
        (STATUS[finding.code].exit for finding in findings if finding.verdict is Verdict.FAIL),
        default=0,
    )
