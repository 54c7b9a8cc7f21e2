"""The options that say how an agent in tmux is reached: for `gateway serve`, and for the manifest
of `agents start`.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from holdfast.domains.gateway.adapter import ANSWER_TIMEOUT_S, QUIET_MS, SETTLE_S

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--interrupt-key", metavar="KEY", help="tmux: C-c or Escape; rest: any key.  [C-c]"
    ),
    click.option(
        "--quiet-ms",
        type=click.IntRange(1),
        metavar="MS",
        help=(
            "tmux: with --ready-regex, ready only when nothing was written for so long.  "
            f"[{QUIET_MS}]"
        ),
    ),
    click.option(
        "--ready-regex",
        metavar="REGEX",
        help=(
            "tmux: the agent is ready only when the last line matches this. Without it, no end is "
            "known."
        ),
    ),
    click.option(
        "--settle",
        metavar="SECONDS",
        type=click.FloatRange(0, min_open=True),
        help=(
            "tmux: without --ready-regex, the next prompt waits until nothing was written for so "
            f"long.  [{SETTLE_S:g}]"
        ),
    ),
    click.option(
        "--answer-timeout",
        metavar="SECONDS",
        type=click.FloatRange(0, min_open=True),
        help=f"Seconds for one answer.  [{ANSWER_TIMEOUT_S:g}]",
    ),
)
_IN_MANIFEST = {
    "interrupt_key": "interrupt",
    "quiet_ms": "quiet_ms",
    "ready_regex": "ready_regex",
    "settle": "settle_s",
    "answer_timeout": "answer_timeout_s",
}
"""What a manifest calls what they say."""


def tmux_options(command: F) -> F:
    """Add them all."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def manifest_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Those that were given, as a manifest calls them."""
    return {_IN_MANIFEST[name]: value for name, value in given.items() if value is not None}


def words_of(settings: Mapping[str, Any]) -> list[str]:
    """The same as the words of a command line."""
    options = {setting: f"--{name.replace('_', '-')}" for name, setting in _IN_MANIFEST.items()}
    return [f"{options[setting]}={value}" for setting, value in settings.items()]
