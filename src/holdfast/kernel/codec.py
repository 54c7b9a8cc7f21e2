"""Records and how they are written: strict, typed JSON with a schema version inside.

Unknown fields, wrong types, missing fields and naive timestamps are refused, on the way in and on the way out.
"""

from datetime import datetime
from typing import Annotated, Any, ClassVar

import msgspec

from holdfast.kernel.errors import InvalidValue

Instant = Annotated[datetime, msgspec.Meta(tz=True)]
"""An aware timestamp, RFC 3339 in JSON; a naive one does not decode."""


class Value(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An immutable value with named, typed fields. Making one with a naive timestamp raises InvalidValue."""

    _instants: ClassVar[tuple[str, ...]]

    def __post_init__(self) -> None:
        # Looked up in the class itself: a subclass has fields that its base does not know.
        names = type(self).__dict__.get("_instants")
        if names is None:
            names = _instant_fields(type(self))
        for name in names:
            at = getattr(self, name)
            # Anything but a datetime here is None, or a wrong type that the encoder or the type checker will name.
            if type(at) is datetime and at.tzinfo is None:
                raise InvalidValue(
                    f"{name} {at.isoformat()} has no time zone: Holdfast takes aware timestamps only", field=name
                )


class Record(Value, frozen=True, kw_only=True):
    """What a space keeps. The version of its model travels inside it."""

    schema_version: int = 1


def to_json(value: Any) -> bytes:
    """Encode any value of ours as compact JSON."""
    return _encoder.encode(value)


def to_plain(value: Any) -> Any:
    """Turn a value into dicts, lists and scalars, as JSON would show it."""
    # Not to_builtins, which leaves tuples and the keys of dicts as they are.
    return msgspec.json.decode(_encoder.encode(value))


def _instant_fields(kind: type[Value]) -> tuple[str, ...]:
    names = tuple(f.name for f in msgspec.structs.fields(kind) if _mentions_instant(f.type))
    kind._instants = names
    return names


def _mentions_instant(kind: Any) -> bool:
    if kind is datetime:
        return True
    return any(_mentions_instant(part) for part in getattr(kind, "__args__", ())) or (
        getattr(kind, "__origin__", None) is datetime
    )


_encoder = msgspec.json.Encoder()
