"""What the command line takes for a request, read from the annotations of its fields. Both parsers
go by it: click's (command.py) and the one for commands that must start fast (quick.py).
"""

import enum
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, cast, get_args, get_origin

import msgspec

from holdfast.kernel.errors import InvalidValue
from holdfast.operations.operation import Flag, Positional, Request, unwrapped

AsJson = Annotated[bool, Flag("--json", help="Print JSON.")]
Quiet = Annotated[bool, Flag("-q", "--quiet", help="Do not show on stderr what the wait is for.")]
Nonblock = Annotated[
    bool,
    Flag(
        *("-n", "--nonblock", "--nb"),
        help="Do not wait at all: exit status 5 when it is not free.",
    ),
]


class FieldPlace(msgspec.Struct, frozen=True):
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
    """What the parser has read is the value."""

    @property
    def default(self) -> Any:
        """The value of an option that is not given, or NODEFAULT for one that must be."""
        return cast("Flag", self.marker).default_of(self.field)

    @property
    def is_switch(self) -> bool:
        """It takes no value."""
        choose = isinstance(self.marker, Flag) and self.marker.choose is not None
        return choose or self.kind is bool

    @property
    def bounds(self) -> tuple[float | None, float | None] | None:
        """The least and the greatest number; None where the command line has no bounds."""
        field_bounds: tuple[float | None, float | None] = (None, None)
        if self.kind is float:
            field_bounds = (0.0, None)
        elif self.meta is not None:
            field_bounds = (self.meta.ge, self.meta.le)
        return self.marker.bounds(*field_bounds) if isinstance(self.marker, Flag) else None

    @property
    def above_zero(self) -> bool:
        """Only numbers greater than 0 are possible."""
        return self.bounds is not None and self.meta is not None and self.meta.gt == 0

    @property
    def choices(self) -> list[str] | None:
        """The words that are possible; None where any is."""
        if is_enum(self.kind):
            return [one.value for one in self.kind]
        return list(get_args(self.kind)) if is_literal(self.kind) else None

    def value(self, value: Any, given: dict[str, Any]) -> Any:
        """Make the value from what a parser has read."""
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
        return self.kind(value) if is_enum(self.kind) and value is not None else value

    def _either(self, value: Any, argument: Any) -> Any:
        if (value is None) != (argument is None):
            return argument if value is None else value
        # Loaded here, for a mistake: a command that starts fast is not parsed by click.
        import click

        option = cast("Flag", self.marker).names[0]
        if value is None:
            raise click.MissingParameter(param_hint=f"'{option}'", param_type="option")
        what = option.strip("-")
        raise click.UsageError(f"say the {what} once: as {what.upper()} or with {option}")


def places(
    request: type[Request], within: tuple[str, type[Request]] | None = None
) -> Iterator[FieldPlace]:
    """Where the fields of a request come from, as far as they are annotated for it."""
    for field in msgspec.structs.fields(request):
        kind, notes, _ = unwrapped(field.type)
        if isinstance(kind, type) and issubclass(kind, Request):
            yield from places(kind, (field.name, kind))
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
            plain = not many and not is_enum(kind)
            if isinstance(marker, Flag):
                changed = marker.choose is not None or marker.unit_s is not None
                plain = plain and not changed and not marker.or_argument
            yield FieldPlace(name, within, field, kind, meta, marker, many, plain)


def values(of: Sequence[FieldPlace], given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a request; they are taken out of `given`, which a parser has read."""
    found: dict[str, Any] = {}
    structs: dict[tuple[str, type[Request]], dict[str, Any]] = {}
    for place in of:
        value = given.pop(place.name)
        target = found if place.within is None else structs.setdefault(place.within, {})
        target[place.field.name] = value if place.plain else place.value(value, given)
    for (name, kind), inner in structs.items():
        found[name] = kind(**inner)
    return found


def is_enum(kind: Any) -> bool:
    """Is it an enumeration?"""
    return isinstance(kind, type) and issubclass(kind, enum.Enum)


def is_literal(kind: Any) -> bool:
    """Is it one of some words?"""
    return get_origin(kind) is Literal


def _pair(word: str, field: str) -> tuple[str, str]:
    key, separator, value = word.partition("=")
    if not key or not separator:
        raise InvalidValue(f"{ascii(word)[:60]} is no KEY=VALUE: write it as rack=7", field=field)
    return key, value
