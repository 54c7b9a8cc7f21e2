"""What scripts call in loops, without loading the full command line, which costs more than the work
itself.

Only the plain forms are taken here; anything else, help and mistakes included, is left to root.py.
Both end in the same function of job_pick.py, and a test holds their outcomes equal.
"""

import os
import sys
from collections.abc import Callable, Sequence

Command = Callable[[], "int | None"]

_PICK_OPTIONS = {
    "--agent-session": "agent_session",
    "--store": "store",
    "--namespace": "namespace",
    "--wait": "wait_s",
    "--pid": "pid",
}
REGISTRY_DIR_ENV = "HOLDFAST_REGISTRY_DIR"
"""Names the folder of jobs of the worker around a command, in which that works unless it is told
another place.
"""
DIGITS_MAX = 10
PID_MAX = 2**31 - 1


def run(arguments: Sequence[str]) -> int | None:
    """Run the command if it is one of the plain ones and return its exit status; None to leave it
    to the full program.
    """
    if list(arguments) == ["--version"]:
        from holdfast import __version__

        print(f"holdfast {__version__}")
        return 0
    if list(arguments[:2]) == ["jobs", "pick"]:
        options = _parse(arguments[2:])
        if (
            options is not None
            and "agent_session" in options
            and ("store" in options or not os.environ.get(REGISTRY_DIR_ENV))
        ):
            return _pick(options)
    return None


def _parse(words: Sequence[str]) -> dict[str, str] | None:
    """Options as pairs of words, each once, and --json alone; None for anything else."""
    options: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--json":
            options["json"] = "yes"
        elif (
            word in _PICK_OPTIONS
            and _PICK_OPTIONS[word] not in options
            and rest
            and not rest[0].startswith("-")
        ):
            options[_PICK_OPTIONS[word]] = rest.pop(0)
        else:
            return None
    if not (
        _plain_number(options.get("wait_s", "0"))
        and _plain_number(options.get("pid", "1"), 1, PID_MAX)
    ):
        return None
    return options


def _plain_number(text: str, least: int = 0, most: int = 10**DIGITS_MAX) -> bool:
    return (
        text.isascii()
        and text.isdecimal()
        and len(text) <= DIGITS_MAX
        and least <= int(text) <= most
    )


def _pick(options: dict[str, str]) -> int:
    import gc

    # What is made by starting lives to the end, so looking for garbage among it is in vain.
    gc.disable()
    _import_msgspec()
    from holdfast.runtime.connection import connect
    from holdfast.surfaces.cli import hints
    from holdfast.surfaces.cli.job_pick import pick_job
    from holdfast.surfaces.cli.output import remark

    hints.forget()
    for name in {hints.STORE, hints.NAMESPACE} & options.keys():
        hints.remember(name, options[name])
    with connect(options.get("store"), namespace=options.get("namespace")) as hf:
        _quieten_driver()
        # Said as the full program says it, without its loading of `logging`.
        hf.jobs.warn = remark
        if "wait_s" in options:
            # This may go on for hours.
            gc.enable()
        return pick_job(
            hf,
            options["agent_session"],
            wait_s=float(options.get("wait_s", "0")),
            pid=int(options["pid"]) if "pid" in options else None,
            as_json="json" in options,
        )


def _import_msgspec() -> None:
    """Import msgspec without typing_extensions.

    It takes that where it is installed and falls back to `typing`, which has all it needs since
    Python 3.11; importing it costs a fifth of the whole start.
    """
    if "msgspec" in sys.modules or "typing_extensions" in sys.modules:
        return
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]
    try:
        import msgspec  # noqa: F401
    finally:
        del sys.modules["typing_extensions"]


def _quieten_driver() -> None:
    """Keep the database driver's own remarks off stderr: what matters of them comes as an error of
    ours.
    """
    if "psycopg" in sys.modules:
        import logging

        logging.getLogger("psycopg").setLevel(logging.ERROR)
