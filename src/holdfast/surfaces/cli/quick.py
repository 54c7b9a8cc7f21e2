"""`holdfast jobs pick`, which scripts call in loops, without loading the full command line: that
costs more than the work itself.

Only the plain forms are taken here; anything else, help and mistakes included, is left to root.py.
Both end in `pick_job`, and a test holds their outcomes equal.
"""

import os
import sys
from collections.abc import Sequence
from types import ModuleType

# Type checkers know this name; importing it from `typing` would cost more than `--version`.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from holdfast.runtime.connection import Holdfast

_PICK_OPTIONS = {
    "--queue": "agent_session",
    "--agent-session": "agent_session",
    "--store": "store",
    "--namespace": "namespace",
    "--wait": "wait_s",
    "--pid": "pid",
}
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
        if options is not None and "agent_session" in options:
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


def _pick(options: dict[str, str]) -> int | None:
    import gc

    import_msgspec()
    from holdfast.runtime.configuration import REGISTRY_DIR_ENV
    from holdfast.runtime.connection import connect
    from holdfast.surfaces.cli import hints
    from holdfast.surfaces.cli.output import remark

    if "store" not in options and os.environ.get(REGISTRY_DIR_ENV):
        return None
    hints.chosen.clear()
    hints.chosen.update({name: options[name] for name in ("store", "namespace") if name in options})
    with connect(options.get("store"), namespace=options.get("namespace")) as hf:
        _quieten_driver()
        # As the full program says it, without loading `logging`.
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


def pick_job(hf: "Holdfast", queue: str, *, wait_s: float, pid: int | None, as_json: bool) -> int:
    """Claim a job; print its id, or all of it as JSON. Returns the exit status.

    Raises Unavailable when the output cannot be written: nobody would know of the claim, so the
    job is put back.
    """
    from holdfast.domains.jobs.records import shown
    from holdfast.kernel.codec import to_json
    from holdfast.kernel.errors import (
        EXIT_DONE,
        EXIT_NOTHING_TO_TAKE,
        HoldfastError,
        Lost,
        Refused,
        Unavailable,
    )
    from holdfast.operations.job_claim import claim_job, unclaim_job
    from holdfast.surfaces.cli.output import write

    job = claim_job(hf, queue, wait_s=wait_s, pid=pid)
    if job is None:
        return EXIT_NOTHING_TO_TAKE
    try:
        write(to_json(shown(job)) if as_json else job.job_id)
    except OSError as error:
        job_id = job.job_id
        untold = f"job {job_id} was picked, but that could not be written ({error.strerror})"
        try:
            unclaim_job(hf, job_id, job.token)
            then, outcome = ": it is pending again", "none"
        except (Lost, Refused):
            then, outcome = "; somebody else has moved it since", "none"
        except HoldfastError as failed:
            then, outcome = f", and it could not be put back ({failed.message})", "unknown"
            then += f": `holdfast jobs status --job {job_id} --set pending` does it"
        raise Unavailable(f"{untold}{then}", job_id=job_id, outcome=outcome) from None
    return EXIT_DONE


class _Later(ModuleType):
    """Stands for a module, which is loaded when something of it is used."""

    def __getattr__(self, name: str) -> "Any":
        if name == "__path__":
            # Every `from` import looks for it.
            raise AttributeError(name)
        from importlib import import_module

        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


def import_msgspec() -> None:
    """Import msgspec and pathlib without six modules that they can do without: 5 ms, a tenth of a
    short command.

    msgspec takes typing_extensions where that is installed, and falls back to `typing`, which has
    all it needs since Python 3.11. `uuid` asks `platform` only whether this is AIX. JSON schemas
    need `textwrap` and `msgspec.inspect`. Addresses in brackets need `ipaddress`, and only a path
    as a URI needs `urllib.parse`.
    """
    if "msgspec" in sys.modules:
        return
    platform = _Later("platform")
    platform.system = lambda: os.uname().sysname  # type: ignore[attr-defined]
    stand_ins = {"platform": platform, "textwrap": _Later("textwrap")}
    for name in ("ipaddress", "urllib.parse", "msgspec.inspect"):
        stand_ins[name] = _Later(name)
    stand_ins["urllib.parse"].quote_from_bytes = _quote  # type: ignore[attr-defined]
    before = set(sys.modules)
    sys.modules.setdefault("typing_extensions", None)  # type: ignore[arg-type]
    for name, module in stand_ins.items():
        sys.modules.setdefault(name, module)
    try:
        import pathlib  # noqa: F401

        import msgspec  # noqa: F401
    finally:
        for name in {"typing_extensions", *stand_ins} - before:
            if sys.modules.get(name) is stand_ins.get(name):
                sys.modules.pop(name, None)


def _quote(path: bytes) -> str:
    """What `pathlib` takes from `urllib.parse` by name when it is loaded."""
    from urllib.parse import quote_from_bytes

    return quote_from_bytes(path)


def _quieten_driver() -> None:
    """Keep the database driver's own remarks off stderr: what matters of them comes as an error of
    ours.
    """
    if "psycopg" in sys.modules:
        import logging

        logging.getLogger("psycopg").setLevel(logging.ERROR)
