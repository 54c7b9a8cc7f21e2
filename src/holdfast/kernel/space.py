"""A space: one kind of record, with all that a store must know about it."""

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.kernel.codec import Record, raise_if_stack_full, to_json
from holdfast.kernel.errors import InvalidValue, RecordInvalid, SchemaTooNew
from holdfast.kernel.layout import Document, Layout
from holdfast.kernel.limits import INDEX_BYTES_MAX, RECORD_BYTES_MAX, SPACE_NAME_CHARS_MAX
from holdfast.kernel.order import Parts, encode

R = TypeVar("R", bound=Record)

Upgrade = Callable[[Document], Document]


class Space(Generic[R]):
    """Records of one model under one name.

    Records of older versions are upgraded when read, and written in the current form when next put.

    `indexes` maps a name to a function of a record that returns a tuple, or None for "not in this
    index"; so an index never disagrees with its record. `volatile` records live for one boot.
    `rank` orders the latches of a store that locks by space: lower first, then by name.
    """

    def __init__(
        self,
        name: str,
        model: type[R],
        *,
        schema_version: int = 1,
        upgrades: Mapping[int, Upgrade] | None = None,
        indexes: Mapping[str, Callable[[R], Parts | None]] | None = None,
        volatile: bool = False,
        rank: int = 100,
        layout: Layout | None = None,
    ) -> None:
        self.name = _checked(name)
        self.model = model
        self.schema_version = schema_version
        self.upgrades = dict(upgrades or {})
        self.indexes = {_checked(index): of for index, of in (indexes or {}).items()}
        self.volatile = volatile
        self.layout = layout
        self.order = (rank, name)
        self._decoder = msgspec.json.Decoder(model)
        if missing := set(range(1, schema_version)) - set(self.upgrades):
            raise InvalidValue(
                f"space {name} has no upgrade from version {min(missing)}: add one to its "
                "`upgrades`"
            )

    def encode(self, record: R) -> bytes:
        """The stored form of a record. Raises InvalidValue for what could not be read again."""
        if type(record) is not self.model or record.schema_version != self.schema_version:
            raise InvalidValue(
                f"space {self.name} keeps {self.model.__name__} of version {self.schema_version}, "
                f"not {type(record).__name__}"
            )
        try:
            data = to_json(record)
            self._decoder.decode(data)
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
            raise_if_stack_full(error)
            raise InvalidValue(
                f"{self.model.__name__} cannot be stored: {error}", space=self.name
            ) from None
        if len(data) > RECORD_BYTES_MAX:
            raise InvalidValue(
                f"the record has {len(data)} bytes and may have {RECORD_BYTES_MAX}: keep large "
                "content in a file and store its path",
                space=self.name,
                bytes=len(data),
            )
        return data

    def decode(self, key: str, data: bytes | str) -> R:
        """The record of its stored form. Raises SchemaTooNew or RecordInvalid, which name it."""
        try:
            record = self._decoder.decode(data)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise_if_stack_full(error)
            return self._decode_slowly(key, data, str(error))
        if record.schema_version == self.schema_version and (
            self.schema_version == 1 or _says_version(data)
        ):
            return record
        return self._decode_slowly(key, data, "")

    def index_keys(self, record: R) -> list[bytes | None]:
        """The record's place in each index."""
        places: list[bytes | None] = []
        for of in self.indexes.values():
            parts = of(record)
            place = None if parts is None else encode(parts)
            if place is not None and len(place) > INDEX_BYTES_MAX:
                raise InvalidValue(
                    f"an indexed value of space {self.name} has {len(place)} bytes and may have "
                    f"{INDEX_BYTES_MAX}: use a shorter one",
                    space=self.name,
                )
            places.append(place)
        return places

    def _decode_slowly(self, key: str, data: bytes | str, why: str) -> R:
        document = self._document(key, data)
        version = document.get("schema_version", 1)
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise self._invalid(key, "its schema_version is not a positive integer")
        if version > self.schema_version:
            raise SchemaTooNew(
                f"{self.name}/{key} has schema version {version} and this program knows up to "
                f"{self.schema_version}: use a newer holdfast",
                space=self.name,
                key=key,
                version=version,
            )
        if version == self.schema_version:
            raise self._invalid(key, why)
        try:
            for step in range(version, self.schema_version):
                document = self.upgrades[step](document)
            return msgspec.convert(
                {**document, "schema_version": self.schema_version}, self.model, str_keys=True
            )
        # msgspec's ValidationError is a ValueError.
        except (LookupError, AttributeError, TypeError, ValueError, ArithmeticError) as error:
            raise self._invalid(
                key, f"it cannot be upgraded from version {version}: {error}"
            ) from None

    def _document(self, key: str, data: bytes | str) -> Document:
        try:
            document = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise_if_stack_full(error)
            raise self._invalid(key, str(error), malformed=True) from None
        if not isinstance(document, dict):
            raise self._invalid(key, "it is not a JSON object", malformed=True)
        return document

    def _invalid(self, key: str, why: str, *, malformed: bool = False) -> RecordInvalid:
        return RecordInvalid(
            f"{self.name}/{key} is damaged ({why}): restore it from a backup, or take it out with "
            f"`holdfast store remove {self.name} {key}`",
            space=self.name,
            key=key,
            why=why,
            malformed=malformed,
        )


def _says_version(data: bytes | str) -> bool:
    """A document without a version has version 1, whatever the model's default is."""
    return "schema_version" in data if isinstance(data, str) else b"schema_version" in data


class Rows(msgspec.Struct, frozen=True):
    """A scope of single records instead of a whole space; see `Store.transact`."""

    space: Space[Any]


def rows(space: Space[Any]) -> Rows:
    """The scope of a transaction that decides only by the records that it gets or takes."""
    return Rows(space)


def _checked(name: str) -> str:
    """A space or index name, which becomes part of a table's or column's name."""
    # Not by a pattern, which every start of the program would compile.
    if (
        name.isascii()
        and name.isidentifier()
        and name[0].isalpha()
        and name.islower()
        and len(name) <= SPACE_NAME_CHARS_MAX
    ):
        return name
    raise InvalidValue(
        f"{name[:40]!r} cannot name a space or an index: use 1 to {SPACE_NAME_CHARS_MAX} "
        "lower-case letters, digits and _"
    )
