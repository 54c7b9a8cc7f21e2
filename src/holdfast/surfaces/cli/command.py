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
from typing import Any, Literal, TypeVar, cast, get_args, get_origin

import click
import msgspec

from holdfast.kernel.clock import UNITS_S
from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.store import Damage
from holdfast.operations.operation import Flag, Operation, Positional, Request, unwrapped
from holdfast.surfaces.cli.connection import connected, store_options
from holdfast.surfaces.cli.output import answer, printable, report_damage

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[F], F]
Connect = Callable[..., AbstractContextManager[Any]]

_SENTENCE_CHARS = 1000
"""Longer than any sentence: click would cut it at the end of the line."""
_SYNONYMS = {"ls": "list", "rm": "remove", "show": "get"}
"""What other programs call some commands, too unlike ours to be found by their letters."""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
quiet_option = click.option(
    "-q", "--quiet", is_flag=True, help="Do not show on stderr what the wait is for."
)


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
    places = list(_places(kind))
    parameters = [one for place in places for one in place.parameters(types or {})]
    covered = {place.field.name for place in places if place.within is None}
    fields = msgspec.structs.fields(kind)
    whole = all(field.name in covered or not field.required for field in fields)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def run(**given: Any) -> Any:
            values = _values(places, given)
            request = partial(kind, **values)
            return function(request=request() if whole else request, **given)

        later = list(getattr(function, "__click_params__", []))
        run.__click_params__ = [*later, *reversed(parameters)]  # type: ignore[attr-defined]
        return run

    return decorate


class Unshown(click.Argument):
    """An argument that help does not show, since an option says the same."""

    def get_usage_pieces(self, ctx: click.Context) -> list[str]:
        return []


class _Place(msgspec.Struct, frozen=True):
    """Where a value of a request comes from on the command line."""

    name: str
    """The name of the parameter."""
    within: tuple[str, type[Request]] | None
    """The field and the type of the struct that the field is in, when that is not the request."""
    field: msgspec.structs.FieldInfo
    kind: Any
    """The type without annotations and None."""
    meta: msgspec.Meta | None
    marker: Flag | Positional
    many: bool
    """It may be given several times."""
    plain: bool
    """What click has read is the value."""

    def parameters(self, types: Mapping[str, click.ParamType[Any]]) -> Iterator[click.Parameter]:
        marker = self.marker
        kind = types.get(self.name) or self._type()
        if isinstance(marker, Positional):
            optional = marker.metavar is not None and marker.metavar.startswith("[")
            required = self.field.required and not optional
            yield click.Argument(
                [self.name],
                type=kind,
                metavar=marker.metavar,
                required=required,
                nargs=-1 if self.many else 1,
            )
            return
        default = marker.default_of(self.field)
        required = default is msgspec.NODEFAULT and not self.many
        switch = marker.choose is not None or self.kind is bool
        settings: dict[str, Any] = {}
        if switch:
            settings = {"is_flag": True, "default": False}
        elif not self.many:
            default = default.value if isinstance(default, enum.Enum) else default
            # A required option must have no default at all: None would count as one.
            settings = {"type": kind} if required else {"type": kind, "default": default}
        yield click.Option(
            [*marker.names, self.name],
            help=marker.help,
            metavar=marker.metavar or ("SECONDS" if isinstance(kind, Duration) else None),
            required=required and not marker.or_argument,
            multiple=self.many,
            show_default=marker.show_default or None,
            envvar=marker.envvar,
            **settings,
        )
        if marker.or_argument:
            yield Unshown([f"{self.name}_argument"], required=False)

    def _type(self) -> click.ParamType[Any]:
        if get_origin(self.kind) is Literal:
            return click.Choice(get_args(self.kind))
        if _is_enum(self.kind):
            return click.Choice([one.value for one in self.kind])
        marker, meta = self.marker, self.meta
        if self.kind is float and isinstance(marker, Flag):
            if marker.unit_s is not None:
                return click.FloatRange(0)
            bounds = marker.bounds(0.0, None)
            if bounds is None:
                return Duration(least=-float("inf"))
            most = float("inf") if bounds[1] is None else bounds[1]
            above_zero = meta is not None and meta.gt == 0
            return Duration(above_zero=above_zero, least=bounds[0] or 0.0, most=most)
        if self.kind is int:
            field_bounds = (None, None) if meta is None else (meta.ge, meta.le)
            bounds = marker.bounds(*field_bounds) if isinstance(marker, Flag) else None
            return click.INT if bounds is None else _WholeRange(*cast("Any", bounds))
        return click.STRING

    def value(self, value: Any, given: dict[str, Any]) -> Any:
        """Make the value from what click has read."""
        marker = self.marker
        if get_origin(self.kind) is dict:
            return dict(_pair(word, self.field.name) for word in value)
        if self.many:
            if not value and not self.field.required:
                return self.field.default
            return list(value) if get_origin(self.kind) is list else tuple(value)
        if isinstance(marker, Flag):
            if marker.choose is not None:
                return marker.choose[bool(value)]
            if marker.or_argument:
                value = self._either(value, given.pop(f"{self.name}_argument"))
            if marker.unit_s is not None and value is not None:
                return value * marker.unit_s
        return self.kind(value) if _is_enum(self.kind) and value is not None else value

    def _either(self, value: Any, argument: Any) -> Any:
        option = cast("Flag", self.marker).names[0]
        if value is not None and argument is not None:
            what = option.strip("-")
            raise click.UsageError(f"say the {what} once: as {what.upper()} or with {option}")
        if value is None and argument is None:
            raise click.MissingParameter(param_hint=f"'{option}'", param_type="option")
        return argument if value is None else value


def _places(
    request: type[Request], within: tuple[str, type[Request]] | None = None
) -> Iterator[_Place]:
    """Where the fields of a request come from, as far as they are annotated for it."""
    for field in msgspec.structs.fields(request):
        kind, notes, _ = unwrapped(field.type)
        if isinstance(kind, type) and issubclass(kind, Request):
            yield from _places(kind, (field.name, kind))
            continue
        marker = meta = None
        for note in notes:
            if isinstance(note, Flag | Positional):
                marker = note
            elif isinstance(note, msgspec.Meta):
                meta = note
        if marker is not None:
            name = field.name if within is None else f"{within[0]}_{field.name}"
            many = get_origin(kind) in (list, tuple, dict)
            plain = not many and not _is_enum(kind)
            if isinstance(marker, Flag):
                changed = marker.choose is not None or marker.unit_s is not None
                plain = plain and not changed and not marker.or_argument
            yield _Place(name, within, field, kind, meta, marker, many, plain)


def _values(of: Sequence[_Place], given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a request; they are taken out of `given`, which click has read."""
    found: dict[str, Any] = {}
    structs: dict[tuple[str, type[Request]], dict[str, Any]] = {}
    for place in of:
        value = given.pop(place.name)
        target = found if place.within is None else structs.setdefault(place.within, {})
        target[place.field.name] = value if place.plain else place.value(value, given)
    for (name, kind), inner in structs.items():
        found[name] = kind(**inner)
    return found


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, enum.Enum)


def _pair(word: str, field: str) -> tuple[str, str]:
    key, separator, value = word.partition("=")
    if not key or not separator:
        raise InvalidValue(f"{ascii(word)[:60]} is no KEY=VALUE: write it as rack=7", field=field)
    return key, value


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
