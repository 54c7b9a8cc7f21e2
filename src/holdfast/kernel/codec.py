"""Records as strict, typed JSON: unknown, missing and wrong fields are refused both ways."""

from datetime import datetime
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
        check_instants(self)


class Record(Plain, frozen=True, kw_only=True):
    """What a space keeps, with the version of its model. A naive timestamp is refused when the
    record is stored: a check of each record that is made would cost a call in every transaction.
    """

    schema_version: int = 1


class Redacted:
    """A base of values with secrets: their repr leaves out the fields in `secret_fields`."""

    __slots__ = ()
    __struct_fields__: ClassVar[tuple[str, ...]]
    secret_fields: ClassVar[frozenset[str]] = frozenset()

    def __rich_repr__(self, /) -> list[tuple[str, Any]]:
        fields = [(name, getattr(self, name)) for name in self.__struct_fields__]
        return [
            (name, ... if value and name in self.secret_fields else value) for name, value in fields
        ]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({fields})"


def check_instants(value: Plain) -> None:
    """Raise InvalidValue for a timestamp without a time zone in a field of a value."""
    try:
        # By class: a subclass has more fields than its base.
        names = _INSTANTS[type(value)]
    except KeyError:
        names = _find_instants(type(value))
    for name in names:
        at = getattr(value, name)
        # Anything else is None, or a wrong type that the encoder or the type checker reports.
        if type(at) is datetime and at.tzinfo is None:
            raise InvalidValue(
                f"{name} {at.isoformat()} has no time zone: Holdfast takes aware timestamps only",
                field=name,
            )


to_json = msgspec.json.Encoder().encode
"""A value as compact JSON. The encoder's own method: every write comes through here several times.
"""


def to_plain(value: Any) -> Any:
    """A value as dicts, lists and scalars, as JSON has it."""
    # Not to_builtins, which keeps tuples and dict keys.
    return msgspec.json.decode(to_json(value))


def encodable(text: str) -> str:
    """The text with halves of surrogate pairs written out, which no encoding carries. Bytes of
    another encoding in a path or on a command line come as such.
    """
    return text.encode(errors="backslashreplace").decode()


def json_bytes(value: Any) -> int:
    """The bytes of a value as JSON in UTF-8. Raises InvalidValue for what cannot be JSON."""
    try:
        return len(to_json(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise_if_stack_full(error)
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


def _find_instants(kind: type[Plain]) -> tuple[str, ...]:
    """The names of the fields of such a value that may hold an instant."""
    found = []
    for field in msgspec.structs.fields(kind):
        parts = [field.type]
        # The list grows while it is gone through: a type may contain others at any depth.
        for part in parts:
            parts += getattr(part, "__args__", ())
        if datetime in parts:
            found.append(field.name)
    _INSTANTS[kind] = tuple(found)
    return _INSTANTS[kind]


_INSTANTS: dict[type[Plain], tuple[str, ...]] = {}
_FRAMES_MIN = 100


def raise_if_stack_full(error: Exception) -> None:
    """After an error in reading or writing JSON: raise RecursionError when the cause is this
    thread's nearly full stack and not the document's nesting.
    """
    if isinstance(error, RecursionError):
        _descend(_FRAMES_MIN)


def _descend(frames: int) -> None:
    if frames:
        _descend(frames - 1)
