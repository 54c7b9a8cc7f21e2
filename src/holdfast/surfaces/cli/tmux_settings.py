"""How an agent in tmux is reached: for `gateway serve`, and for the manifest of `agents start`."""

from typing import Annotated, Any

from msgspec import Meta
from msgspec.structs import asdict

from holdfast.kernel.agent_adapter import ANSWER_TIMEOUT_S, QUIET_MS, SETTLE_S
from holdfast.operations.operation import Flag, Request

_IN_MANIFEST = {
    "interrupt_key": "interrupt",
    "quiet_ms": "quiet_ms",
    "ready_regex": "ready_regex",
    "settle": "settle_s",
    "answer_timeout": "answer_timeout_s",
}
"""The names of the settings in a manifest."""


class TmuxSettings(Request, frozen=True, kw_only=True):
    """Settings of an agent's adapter; None where the user gave none."""

    interrupt_key: Annotated[
        str | None,
        Flag("--interrupt-key", metavar="KEY", help="tmux: C-c or Escape; rest: any key.  [C-c]"),
    ] = None
    quiet_ms: Annotated[
        int | None,
        Flag(
            "--quiet-ms",
            metavar="MS",
            within=(1, None),
            help="tmux: with --ready-regex, ready only when nothing was written for so long.  "
            f"[{QUIET_MS}]",
        ),
    ] = None
    ready_regex: Annotated[
        str | None,
        Flag(
            "--ready-regex",
            metavar="REGEX",
            help="tmux: the agent is ready only when the last line matches this. "
            "Without it, no end is known.",
        ),
    ] = None
    settle: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Flag(
            "--settle",
            help="tmux: without --ready-regex, the next prompt waits until nothing was written "
            f"for so long.  [{SETTLE_S:g}]",
        ),
    ] = None
    answer_timeout: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Flag("--answer-timeout", help=f"Seconds for one answer.  [{ANSWER_TIMEOUT_S:g}]"),
    ] = None

    def given(self) -> dict[str, Any]:
        """Those that the user gave, by the names of the options."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def in_manifest(self) -> dict[str, Any]:
        """Those that the user gave, by the names of a manifest."""
        return {_IN_MANIFEST[name]: value for name, value in self.given().items()}

    def words(self) -> list[str]:
        """Those that the user gave, as words of a command line."""
        return [f"--{name.replace('_', '-')}={value}" for name, value in self.given().items()]
