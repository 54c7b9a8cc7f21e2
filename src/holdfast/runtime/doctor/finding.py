"""What a check says."""

import enum
import re
from collections.abc import Callable, Iterable

from holdfast.kernel.codec import Value
from holdfast.kernel.errors import STATUS, HoldfastError


class Verdict(enum.StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    """It works, and should be seen to."""
    FAIL = "fail"
    """It does not work, or is not safe."""


class Finding(Value, frozen=True, kw_only=True):
    """What one check says of one thing. `mend` is what to do; `code` is an error's of the tree, for
    what fails.
    """

    check: str
    verdict: Verdict
    says: str
    mend: str = ""
    code: str = ""


_SENTENCE = re.compile(r"(.*[^.])\. (.*)", re.DOTALL)
_COLON = re.compile(r"(.+): (.*)", re.DOTALL)

Looks = Callable[[], Iterable[Finding]]
"""A check. What it raises of the tree is what it found."""


def ok(check: str, says: str) -> Finding:
    """All is well with it."""
    return Finding(check=check, verdict=Verdict.OK, says=says)


def warn(check: str, says: str, mend: str) -> Finding:
    """It should be seen to."""
    return Finding(check=check, verdict=Verdict.WARN, says=says, mend=mend)


def fail(check: str, says: str, mend: str, code: str) -> Finding:
    """It must be mended."""
    return Finding(check=check, verdict=Verdict.FAIL, says=says, mend=mend, code=code)


def failed(check: str, error: HoldfastError) -> Finding:
    """What an error says; its message ends with what to do, as a sentence of its own or behind a
    colon.
    """
    # Three dots end no sentence.
    parts = _SENTENCE.match(error.message) or _COLON.match(error.message)
    return fail(check, parts[1] if parts else error.message, parts[2] if parts else "", error.code)


def exit_status(findings: Iterable[Finding]) -> int:
    """0 unless something fails; then the worst of what the errors' table says."""
    return max(
        (STATUS[finding.code].exit for finding in findings if finding.verdict is Verdict.FAIL),
        default=0,
    )
