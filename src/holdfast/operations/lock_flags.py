"""How the command line offers a lock, apart from the rest so that `locks run` starts fast."""

from typing import Annotated

from holdfast.operations.operation import Flag, Positional
from holdfast.primitives.locks.records import Mode

NAMES = Positional("NAME...")
ModeSwitch = Annotated[
    Mode,
    Flag(
        "-s/-x",
        "--shared/--exclusive",
        " /-e",
        choose=(Mode.EXCLUSIVE, Mode.SHARED),
        help="Share it with other sharers, or hold it exclusively (the default).",
    ),
]
priority_flag = Flag(
    "--priority",
    show_default=True,
    help="Higher goes first; each step is worth a few seconds of having come earlier.",
)


def timeout_flag(default: float | None, shown: str = "default: no limit") -> Flag:
    """-w, as flock(1) has it. `shown` describes the default where there is no number."""
    shown = shown if default is None else f"default: {default:g}"
    return Flag(
        "-w",
        "--timeout",
        "--wait",
        default=default,
        help=f"Give up after this long, with exit status 5.  [{shown}]",
    )
