"""Commands made from operations.

Options and arguments come from the annotations of a request, the output from the result. By hand
are only the functions that show a result to people, and commands that wait, stream or run programs:

    @holds.operation(operations.take)
    def take(done: HoldCount) -> str:
        '''Hold SUBJECT, and print how many do now.'''
        return str(done.count)
"""

import enum
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial, wraps
from typing import Any, TypeVar, cast

import click
import msgspec

from holdfast.kernel.clock import UNITS_S
from holdfast.kernel.codec import to_json
from holdfast.kernel.store import Damage
from holdfast.operations.operation import Flag, Operation, Positional, Request
from holdfast.surfaces.cli.connection import connected
from holdfast.surfaces.cli.options import AsJson, FieldPlace, Nonblock, Quiet, places, values
from holdfast.surfaces.cli.output import answer, printable, report_damage
from holdfast.surfaces.cli.quick import QuickCommand
from holdfast.surfaces.cli.store_options import job_store_options, store_options

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[F], F]
Connect = Callable[..., AbstractContextManager[Any]]

_SEPARATOR = "--"
_SENTENCE_CHARS = 1000
"""Longer than any sentence: click would cut it at the end of the line."""
_SYNONYMS = {"ls": "list", "rm": "remove", "show": "get"}
"""What other programs call some commands, too unlike ours to be found by their letters."""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


class Duration(click.ParamType[float]):
    """Seconds as a number, or a time such as 90s, 10m, 2h."""

    name = "duration"

    def __init__(
        self, *, above_zero: bool = False, least: float = 0.0, most: float = float("inf")
    ) -> None:
        self._above_zero = above_zero
        self._least = least
        self._most = most

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            seconds = float(value)
        except ValueError:
            found = _DURATION.fullmatch(value)
            if found is None:
                self.fail(f"{value!r} is not a number such as 30 or 0.5", param, ctx)
            seconds = float(found[1]) * UNITS_S[found[2]]
        if seconds != seconds:
            self.fail(f"{value} is not a number such as 30 or 0.5", param, ctx)
        if self._above_zero and not 0 < seconds < float("inf"):
            example = "give more than 0 seconds, such as 30 or 0.5"
            self.fail(f"{value} is not possible: {example}", param, ctx)
        if not self._least <= seconds <= self._most:
            end = "on" if self._most == float("inf") else f"to {self._most:g}"
            example = f"give seconds from {self._least:g} {end}, such as 30 or 0.5"
            self.fail(f"{value} is not possible: {example}", param, ctx)
        return seconds


class _WholeRange(click.IntRange):
    """A whole number. A greater one than a store or Python counts to means the greatest."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return min(super().convert(value, param, ctx), sys.maxsize)


class CommandGroup(click.Group):
    """A group that lists its commands in the order in which they were added.

    It suggests a command for one that is not there, and refuses an option that is given twice
    where it takes one value.
    """

    def operation(
        self,
        operation: Operation,
        name: str | None = None,
        *,
        short_help: str | None = None,
        where: Decorator[Any] = store_options,
        create: bool | None = None,
        connect: Connect = connected,
        types: Mapping[str, click.ParamType[Any]] | None = None,
    ) -> Callable[[Callable[..., str | None]], click.Command]:
        """Make a command of an operation; the function shows its result to people.

        The function gets the result, and `request` and `hf` if it has such parameters. It returns
        what to print, or prints itself. Its docstring is the help, if it has one. `create` says
        whether a store is made that is not there: by default, where the operation changes it.
        `connect` gives what the operation works on, by the options of `where`.
        """

        def make(show: Callable[..., str | None]) -> click.Command:
            wanted = show.__code__.co_varnames[1 : show.__code__.co_argcount]
            creates = not operation.reads if create is None else create

            def run(request: Request, as_json: bool) -> int:
                damaged: Damage = []
                more = {"damaged": damaged} if operation.skips_damaged else {}
                with connect(create=creates) as hf:
                    result = operation(hf, request, **more)
                    given = {"request": request, "hf": hf}
                    shown = {name: given[name] for name in wanted}
                    text = to_json(result) if as_json else show(result, **shown)
                if isinstance(text, str):
                    text = printable(text)
                if text is not None:
                    (click.echo if operation.reads else answer)(text)
                return report_damage(damaged)

            decorated = request_options(operation.request, types=types)(json_option(where(run)))
            command = click.command(
                name or show.__name__.strip("_"),
                help=show.__doc__ or operation.description,
                short_help=short_help,
            )(decorated)
            self.add_command(command)
            return command

        return make

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # A group's own options stand before the first word.
        if args and args[0].startswith("-"):
            _check_once(ctx, args)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word, known = args[0], self.list_commands(ctx)
        if word not in known and not word.startswith("-") and not ctx.resilient_parsing:
            # Loaded here, as few commands are mistyped.
            from difflib import get_close_matches

            meant = _SYNONYMS.get(word)
            if meant not in known:
                meant = next(iter(get_close_matches(word, known, n=1)), None)
            hint = f"Did you mean {meant!r}?" if meant else f"There are {', '.join(known)}."
            ctx.fail(f"No such command {word!r}. {hint}")
        name, command, rest = super().resolve_command(ctx, args)
        if (
            command is not None
            and not isinstance(command, CommandGroup)
            and not ctx.resilient_parsing
        ):
            # Here, once for all commands, since each is a class of click's own.
            _check_once(click.Context(command, ctx, name, **command.context_settings), rest)
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, one.get_short_help_str(_SENTENCE_CHARS)) for name, one in commands if one]
            )


def request_options(
    kind: type[Request], *, types: Mapping[str, click.ParamType[Any]] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let a function take a request of a kind as `request`, made from the command's words.

    Where the command line has no option for a field that is needed, `request` is a partial that
    takes it.
    """
    own = list(places(kind))
    covered = {place.field.name for place in own if place.within is None}
    fields = msgspec.structs.fields(kind)
    whole = all(field.name in covered or not field.required for field in fields)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def run(**given: Any) -> Any:
            request = partial(kind, **values(own, given))
            return function(request=request() if whole else request, **given)

        return _with_parameters(run, own, types)

    return decorate


def options_of(kind: type[Request]) -> Decorator[Any]:
    """Let a function take the fields of a kind as its parameters."""
    return lambda function: _with_parameters(function, list(places(kind)))


def _with_parameters(
    function: Callable[..., Any],
    of: Sequence[FieldPlace],
    types: Mapping[str, click.ParamType[Any]] | None = None,
) -> Callable[..., Any]:
    parameters = [one for place in of for one in _parameters(place, types or {})]
    # Click keeps the last one first.
    later = list(getattr(function, "__click_params__", []))
    function.__click_params__ = [*later, *reversed(parameters)]  # type: ignore[attr-defined]
    return function


def click_command(
    command: QuickCommand, *, types: Mapping[str, click.ParamType[Any]] | None = None
) -> click.Command:
    """The full form of a command that starts fast: with help and answers to mistakes."""
    requested, optional = list(places(command.request)), list(places(command.options))

    def run(**given: Any) -> Any:
        request = command.request(**values(requested, given))
        # What is left are the words of a program that the command runs.
        return command.run(request, command.options(**values(optional, given)), **given)

    run = (job_store_options if command.of_jobs else store_options)(run)
    run = _with_parameters(_with_parameters(run, optional), requested, types)
    return click.command(
        command.name,
        cls=Wrapper if command.runs_a_program else click.Command,
        help=command.run.__doc__,
        short_help=command.short_help,
    )(run)


class _Json(Request, frozen=True, kw_only=True):
    as_json: AsJson = False


class _Quiet(Request, frozen=True, kw_only=True):
    quiet: Quiet = False


class _Nonblock(Request, frozen=True, kw_only=True):
    nonblock: Nonblock = False


json_option = options_of(_Json)
quiet_option = options_of(_Quiet)
nonblock_option = options_of(_Nonblock)


class Wrapper(click.Command):
    """A command that takes names, then `--`, then the words of another command.

    Where no name stands before the first `--`, that one ends the options as everywhere, so that a
    name may begin with a dash, and the next one behind a name begins the command.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        names, command = args, list[str]()
        if _SEPARATOR in args:
            at = args.index(_SEPARATOR)
            names, command = args[:at], args[at + 1 :]
            if not self._has_names(ctx, names):
                at = command.index(_SEPARATOR, 1) if _SEPARATOR in command[1:] else len(command)
                names, command = [*names, _SEPARATOR, *command[:at]], command[at + 1 :]
        left = super().parse_args(ctx, names)
        ctx.params["words"] = tuple(command)
        return left

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), _SEPARATOR, "COMMAND [ARGUMENT]..."]

    def _has_names(self, ctx: click.Context, args: list[str]) -> bool:
        options, _, _ = self.make_parser(ctx).parse_args(list(args))
        for parameter in self.params:
            if isinstance(parameter, click.Argument):
                value = options.get(parameter.name)
                # An empty word is a name, if a wrong one, as of a variable that is not set.
                if isinstance(value, str) or (isinstance(value, tuple | list) and value):
                    return True
        return False


class Unshown(click.Argument):
    """An argument that help does not show, since an option says the same."""

    def get_usage_pieces(self, ctx: click.Context) -> list[str]:
        return []


def _parameters(
    place: FieldPlace, types: Mapping[str, click.ParamType[Any]]
) -> Iterator[click.Parameter]:
    marker = place.marker
    kind = types.get(place.name) or _type(place)
    if isinstance(marker, Positional):
        optional = marker.metavar is not None and marker.metavar.startswith("[")
        required = place.field.required and not optional
        yield click.Argument(
            [place.name],
            type=kind,
            metavar=marker.metavar,
            required=required,
            nargs=-1 if place.many else 1,
        )
        return
    default = place.default
    required = default is msgspec.NODEFAULT and not place.many
    settings: dict[str, Any] = {}
    if place.is_switch:
        settings = {"is_flag": True, "default": False}
    elif not place.many:
        default = default.value if isinstance(default, enum.Enum) else default
        # A required option must have no default at all: None would count as one.
        settings = {"type": kind} if required else {"type": kind, "default": default}
    yield click.Option(
        [*marker.names, place.name],
        help=marker.help,
        metavar=marker.metavar or ("SECONDS" if isinstance(kind, Duration) else None),
        required=required and not marker.or_argument,
        multiple=place.many,
        show_default=marker.show_default or None,
        envvar=marker.envvar,
        **settings,
    )
    if marker.or_argument:
        yield Unshown([f"{place.name}_argument"], required=False)


def _type(place: FieldPlace) -> click.ParamType[Any]:
    if place.choices is not None:
        return click.Choice(place.choices)
    bounds = place.bounds
    if place.kind is float and isinstance(place.marker, Flag):
        if place.marker.unit_s is not None:
            return click.FloatRange(0)
        if bounds is None:
            return Duration(least=-float("inf"))
        most = float("inf") if bounds[1] is None else bounds[1]
        return Duration(above_zero=place.above_zero, least=bounds[0] or 0.0, most=most)
    if place.kind is int:
        return click.INT if bounds is None else _WholeRange(*cast("Any", bounds))
    return click.STRING


def _check_once(ctx: click.Context, args: list[str]) -> None:
    """Raise UsageError for an option with one value that is given twice: click takes the last."""
    if ctx.resilient_parsing:
        return
    _, _, order = ctx.command.make_parser(ctx).parse_args(list(args))
    for parameter, number in Counter(order).items():
        single = isinstance(parameter, click.Option) and not (
            parameter.multiple or parameter.count or parameter.is_flag
        )
        if single and number > 1:
            option = max(parameter.opts, key=len)
            raise click.UsageError(f"{option} is given {number} times, and takes one value", ctx)
