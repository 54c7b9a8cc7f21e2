"""The commands that scripts call in loops. They run without the full command line: importing click
takes almost as long as Python's own start.

Only plain forms are read here: each option once, as words of their own, behind the verb. Everything
else, help and mistakes included, is left to root.py. Both parsers make the same request of the same
annotations (options.py), and call the same function.
"""

import os
import sys
from collections.abc import Callable, Sequence

# Type checkers know this name; importing it from `typing` would cost more than `--version`.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from holdfast.operations.operation import Request
    from holdfast.surfaces.cli.options import FieldPlace

COMMANDS = {
    ("agents", "resolve"): "agent_resolve",
    ("jobs", "pick"): "job_pick",
    ("jobs", "status"): "job_status",
    ("locks", "acquire"): "lock_acquire",
    ("locks", "run"): "lock_run",
}
"""Their modules, which load no others of the command line's areas."""

_STORE_OPTIONS = {"--store": "store", "--namespace": "namespace"}
_SEPARATOR = "--"
_DIGITS_MAX = 10


class QuickCommand:
    """A function for a command that must start fast.

    It takes a `request` and `options`, of the types of its annotations. If it `runs_a_program`, it
    also takes the words of that. `of_jobs` says that a folder of jobs may take the place of a
    store.
    """

    def __init__(
        self,
        run: "Callable[..., int]",
        short_help: str | None = None,
        *,
        of_jobs: bool = False,
        runs_a_program: bool = False,
    ) -> None:
        self.name = run.__name__
        self.run = run
        self.request: type[Request] = run.__annotations__["request"]
        self.options: type[Request] = run.__annotations__["options"]
        self.short_help = short_help
        self.of_jobs = of_jobs
        self.runs_a_program = runs_a_program


def quick_command(
    short_help: str | None = None, *, of_jobs: bool = False, runs_a_program: bool = False
) -> "Callable[[Callable[..., int]], QuickCommand]":
    """Make a command of a function."""
    return lambda run: QuickCommand(run, short_help, of_jobs=of_jobs, runs_a_program=runs_a_program)


def run(arguments: Sequence[str]) -> int | None:
    """Run the command if it is one of these, in a plain form, and return its exit status; None to
    leave it to the full program.
    """
    if list(arguments) == ["--version"]:
        from holdfast import __version__

        print(f"holdfast {__version__}")
        return 0
    area, verb = (*arguments, "", "")[:2]
    if (area, verb) not in COMMANDS:
        return None
    from importlib import import_module

    from holdfast.surfaces.cli.imports import import_msgspec

    import_msgspec()
    command = getattr(import_module(f"holdfast.surfaces.cli.{COMMANDS[area, verb]}"), verb)
    line = _PlainLine(command)
    if not line.read(arguments[2:]):
        return None
    return _begun(line, arguments)


def _begun(line: "_PlainLine", arguments: Sequence[str]) -> int | None:
    from holdfast.primitives import log
    from holdfast.surfaces.cli.connection import begin

    begin(arguments, **line.chosen)
    log.before_first = _listen
    try:
        return line.call()
    except Exception as error:
        # A mistake that the function itself found, before it did anything.
        click = sys.modules.get("click")
        if click is not None and isinstance(error, click.UsageError):
            return None
        raise
    finally:
        logs = sys.modules.get("holdfast.surfaces.cli.logs")
        if logs is not None and logs.WARNINGS.waiting:
            logs.WARNINGS.flush()


class _PlainLine:
    """The words of a command line, as far as they are plain."""

    def __init__(self, command: QuickCommand) -> None:
        from holdfast.surfaces.cli.options import places

        self._command = command
        self._requested = list(places(command.request))
        self._optional = list(places(command.options))
        self._found: dict[str, Any] = {}
        self._program: list[str] = []
        self.chosen: dict[str, str] = {}
        """The options that choose a store."""

    def call(self) -> int:
        """Run the command."""
        from holdfast.surfaces.cli.options import values

        command = self._command
        request = command.request(**values(self._requested, self._found))
        options = command.options(**values(self._optional, self._found))
        words = {"words": tuple(self._program)} if command.runs_a_program else {}
        return command.run(request, options, **words)

    def read(self, words: Sequence[str]) -> bool:
        """Read the words behind the verb; False when they are not plain."""
        words = list(words)
        if self._command.runs_a_program:
            if _SEPARATOR not in words:
                return False
            at = words.index(_SEPARATOR)
            words, self._program = words[:at], words[at + 1 :]
            if not self._program:
                return False
        arguments = self._read_options(words)
        return (
            arguments is not None
            and self._take(arguments)
            and all(map(self._complete, (*self._requested, *self._optional)))
            and self._is_of_a_store()
        )

    def _read_options(self, words: list[str]) -> list[str] | None:
        """Take the options out of words; None when they are not plain."""
        options = dict(_options((*self._requested, *self._optional)))
        arguments = []
        rest = iter(words)
        for word in rest:
            if not word.startswith("-"):
                arguments.append(word)
                continue
            place, switched = options.get(word, (None, True))
            name = _STORE_OPTIONS.get(word) if place is None else place.name
            target = self.chosen if place is None else self._found
            if name is None or name in target:
                return None
            if place is not None and place.is_switch:
                self._found[name] = switched
                continue
            text = next(rest, "-")
            value = text if place is None else _value(place, text)
            if value is None or text.startswith("-"):
                return None
            target[name] = value
        return arguments

    def _take(self, arguments: list[str]) -> bool:
        """Take arguments for their places; False where their number is another."""
        for place in self._requested:
            if getattr(place.marker, "or_argument", False):
                self._found[f"{place.name}_argument"] = arguments.pop(0) if arguments else None
            elif not hasattr(place.marker, "names"):
                if not arguments:
                    return False
                taken = arguments if place.many else arguments[0]
                self._found[place.name] = taken
                arguments = [] if place.many else arguments[1:]
        return not arguments

    def _complete(self, place: "FieldPlace") -> bool:
        """Add the default of what is not there; False where it must be."""
        import msgspec

        if place.name in self._found:
            # The full parser says it when there are two values for one.
            return self._found.get(f"{place.name}_argument") is None
        if place.is_switch:
            self._found[place.name] = False
            return True
        default = place.default
        envvar = getattr(place.marker, "envvar", None)
        if place.many or (envvar is not None and envvar in os.environ):
            return False
        if default is msgspec.NODEFAULT:
            if self._found.get(f"{place.name}_argument") is None:
                return False
            default = None
        self._found[place.name] = default
        return True

    def _is_of_a_store(self) -> bool:
        """It is not about the folder of jobs of the worker around this command."""
        from holdfast.runtime.configuration import REGISTRY_DIR_ENV

        here = self._command.of_jobs and "store" not in self.chosen
        return not (here and os.environ.get(REGISTRY_DIR_ENV))


def _options(of: "Sequence[FieldPlace]") -> "list[tuple[str, tuple[FieldPlace, bool]]]":
    """The options by name; of a switch with two sides also whether it switches on."""
    return [
        (name.strip(), (place, side == 0))
        for place in of
        for names in getattr(place.marker, "names", ())
        for side, name in enumerate(names.split("/"))
    ]


def _value(place: "FieldPlace", text: str) -> "Any":
    """The value of an option, or None where the full parser has to see it."""
    if place.many or getattr(place.marker, "unit_s", None) is not None:
        return None
    if place.choices is not None:
        return text if text in place.choices else None
    if place.kind is str:
        return text
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX):
        return None
    number = place.kind(text)
    least, most = place.bounds or (None, None)
    too_small = (least is not None and number < least) or (place.above_zero and number <= 0)
    return None if too_small or (most is not None and number > most) else number


def collect_garbage() -> None:
    """Let the garbage collector work again, where `main` switched it off. What was loaded lives to
    the end, so the collector need never look at it.
    """
    import gc

    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def _listen() -> None:
    # Loaded here: few commands log anything, and loading `logging` costs a short command too much.
    from holdfast.surfaces.cli.logs import listen

    listen()
