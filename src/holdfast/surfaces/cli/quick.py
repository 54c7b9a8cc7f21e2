"""What scripts call in loops, without loading the full command line, which costs more than the work itself.

Only the plain forms are taken here; anything else, help and mistakes included, is left to root.py. Both end in the same
functions of picking.py, and a test holds their results equal.
"""

from collections.abc import Callable, Sequence

Command = Callable[[], "int | None"]

_PICK_OPTIONS = {
    "--agent-session": "agent_session",
    "--store": "store",
    "--namespace": "namespace",
    "--wait": "wait_s",
    "--pid": "pid",
}


def run(arguments: Sequence[str]) -> int | None:
    """Run the command if it is one of the plain ones and return its exit status; None to leave it to the full program."""
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
    """Options as pairs of words, and --json alone; None for anything else."""
    options: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--json":
            options["json"] = "yes"
        elif word in _PICK_OPTIONS and rest and not rest[0].startswith("-"):
            options[_PICK_OPTIONS[word]] = rest.pop(0)
        else:
            return None
    if not all(options.get(number, "0").isdecimal() for number in ("wait_s", "pid")):
        return None
    return options


def _pick(options: dict[str, str]) -> int:
    from holdfast.app import connect
    from holdfast.surfaces.cli.picking import pick

    with connect(options.get("store"), namespace=options.get("namespace")) as hf:
        return pick(
            hf,
            options["agent_session"],
            wait_s=float(options.get("wait_s", "0")),
            pid=int(options["pid"]) if "pid" in options else None,
            as_json="json" in options,
        )
