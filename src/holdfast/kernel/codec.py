"""Records as strict, typed JSON: unknown, missing and wrong fields are refused both ways."""

from collections.abc import Callable
from datetime import datetime
from operator import attrgetter
from typing import Annotated, Any, ClassVar

import msgspec

from holdfast.kernel.errors import InvalidValue

Instant = Annotated[datetime, msgspec.Meta(tz=True)]
"""An aware timestamp, RFC 3339 in JSON; a naive one does not decode."""


class Plain(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An immutable value. Its fields are checked when it is read or stored, not when it is made."""


class Value(Plain, frozen=True, kw_only=True):
    """A `Plain` value that also refuses naive timestamps when it is made, by InvalidValue."""

    def __post_init__(self) -> None:
        try:
            # By class: a subclass has more fields than its base.
            instants = _INSTANTS[type(self)]
        except KeyError:
            instants = _instants_of(type(self))
        for at in instants(self):
            # Anything else is None, or a wrong type that the encoder or the type checker reports.
            if type(at) is datetime and at.tzinfo is None:
                raise _naive(self, at)


class Record(Value, frozen=True, kw_only=True):
    """What a space keeps, with the version of its model."""

    schema_version: int = 1


class Discreet:
    """A base of values with secrets: their repr leaves out the fields in `unshown`."""

    __slots__ = ()
    __struct_fields__: ClassVar[tuple[str, ...]]
    unshown: ClassVar[frozenset[str]] = frozenset()

    def __rich_repr__(self, /) -> list[tuple[str, Any]]:
        fields = [(name, getattr(self, name)) for name in self.__struct_fields__]
        return [(name, ... if value and name in self.unshown else value) for name, value in fields]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({fields})"


def to_json(value: Any) -> bytes:
    """A value as compact JSON."""
    return _encoder.encode(value)


def to_plain(value: Any) -> Any:
    """A value as dicts, lists and scalars, as JSON has it."""
    # Not to_builtins, which keeps tuples and dict keys.
    return msgspec.json.decode(_encoder.encode(value))


def json_bytes(value: Any) -> int:
    """The bytes of a value as JSON in UTF-8. Raises InvalidValue for what cannot be JSON."""
    try:
        return len(_encoder.encode(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValue(f"this cannot be written as JSON: {error}") from None


def cut(text: str, bytes_max: int) -> str:
    """The text, or its beginning and the mark CUT, in at most that many bytes as JSON."""
    if json_bytes(text) <= bytes_max:
        return text
    low, high = 0, min(len(text), max(bytes_max, 0))
    while low < high:
        middle = (low + high + 1) // 2
        if json_bytes(text[:middle] + CUT) <= bytes_max:
            low = middle
        else:
            high = middle - 1
    return text[:low] + CUT


CUT = " [cut]"
"""The mark at the end of a text that was cut."""


def _naive(value: Value, at: datetime) -> InvalidValue:
    name = next(f.name for f in msgspec.structs.fields(value) if getattr(value, f.name) is at)
    return InvalidValue(
        f"{name} {at.isoformat()} has no time zone: Holdfast takes aware timestamps only",
        field=name,
    )


def _instants_of(kind: type[Value]) -> Callable[[Value], tuple[Any, ...]]:
    """A getter of all instants of such a value."""
    # Most fields are of plain types, without arguments: no call for those.
    names = [
        f.name
        for f in msgspec.structs.fields(kind)
        if f.type is datetime or (hasattr(f.type, "__args__") and _mentions_instant(f.type))
    ]
    # A single name is given twice, so that the getter returns a tuple too.
    found = attrgetter(*(names * 2 if len(names) == 1 else names)) if names else lambda _: ()
    _INSTANTS[kind] = found
    return found


def _mentions_instant(kind: Any) -> bool:
    return kind is datetime or any(map(_mentions_instant, getattr(kind, "__args__", ())))


_INSTANTS: dict[type[Value], Callable[[Value], tuple[Any, ...]]] = {}
_encoder = msgspec.json.Encoder()
_FRAMES_MIN = 100


def blame_stack(error: Exception) -> None:
    """Raises RecursionError if this thread's stack is nearly full, and no document to blame."""
    if isinstance(error, RecursionError):
        _descend(_FRAMES_MIN)


def _descend(frames: int) -> None:
    if frames:
        _descend(frames - 1)
