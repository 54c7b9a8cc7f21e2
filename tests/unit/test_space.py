"""A space returns valid records of the current version or says which record is damaged; it never
guesses.
"""

import contextlib
import inspect
import json
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.kernel.codec import Instant, Record
from holdfast.kernel.errors import InvalidName, InvalidValue, Misuse, RecordInvalid, SchemaTooNew
from holdfast.kernel.limits import INDEX_BYTES_MAX, RECORD_BYTES_MAX
from holdfast.kernel.order import encode
from holdfast.kernel.space import Rows, Space, rows
from holdfast.stores.port import spaces_of
from tests.harness.errors import raises


class Tool(Record, frozen=True, kw_only=True):
    schema_version: int = 3
    name: str
    length_mm: int = 0
    bought_at: Instant | None = None
    uses: dict[int, str] = msgspec.field(default_factory=dict)
    notes: dict[str, Any] = msgspec.field(default_factory=dict)


def from_1(old: dict[str, Any]) -> dict[str, Any]:
    """A careless upgrade, as upgrades are: it trusts what it reads."""
    return {
        **{key: old[key] for key in old if key != "cm"},
        "mm": old["cm"] * 10,
        "name": old["name"].lower(),
    }


def from_2(old: dict[str, Any]) -> dict[str, Any]:
    return {**{key: old[key] for key in old if key != "mm"}, "length_mm": int(old["mm"])}


TOOLS = Space("tools", Tool, schema_version=3, upgrades={1: from_1, 2: from_2})
HAMMER = Tool(name="hammer", length_mm=300)

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.just("2026-01-01T00:00:00"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
almost_tools = st.fixed_dictionaries(
    {},
    optional={
        "schema_version": st.sampled_from([0, 1, 2, 3, 4, -1, 1.0, True, None, "1", 1 << 64])
        | json_values,
        "name": st.just("x") | json_values,
        "cm": st.just(30) | json_values,
        "mm": st.just(300) | json_values,
        "length_mm": st.just(300) | json_values,
        "bought_at": json_values,
        "uses": st.just({"1": "nail"}) | json_values,
        "notes": json_values,
        "other": json_values,
    },
)


def decoded_or_refused(data: bytes | str) -> Tool | None:
    try:
        record = TOOLS.decode("k", data)
    except (RecordInvalid, SchemaTooNew) as error:
        reported: RecordInvalid | SchemaTooNew | None = error
    else:
        reported = None
    if reported is not None:
        assert (reported.fields["space"], reported.fields["key"]) == ("tools", "k")
        assert "tools/k" in str(reported)
        return None
    assert type(record) is Tool and record.schema_version == 3
    assert record.bought_at is None or record.bought_at.tzinfo is not None
    return record


@given(st.binary(max_size=40))
@example(b"")
@example(b"\xef\xbb\xbf{}")
@example(b'{"schema_version":3,"name":"\xff"}')
@example(rb'{"schema_version":3,"name":"\ud800"}')
@example(b'{"schema_version":' + b"9" * 5000 + b"}")
@example(b'{"schema_version":3,"name":"x","notes":{"a":' + b"[" * 20_000 + b"]" * 20_000 + b"}}")
@example(b'{"name":"x","notes":{"a":' + b'{"a":' * 20_000)
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    decoded_or_refused(data)


@given(json_values | almost_tools)
@example({"schema_version": 1, "name": 5, "cm": 1})
@example({"schema_version": 1, "name": "x", "cm": 1e308})
def test_any_json_decodes_or_is_refused(document: Any) -> None:
    decoded_or_refused(json.dumps(document).encode())


@given(st.text(max_size=20))
@example('{"schema_version":3,"name":"\ud800"}')
def test_any_text_decodes_or_is_refused(data: str) -> None:
    decoded_or_refused(data)


@given(almost_tools)
def test_what_is_decoded_can_be_stored_again(document: dict[str, Any]) -> None:
    record = decoded_or_refused(json.dumps(document).encode())
    if record is not None:
        assert TOOLS.decode("k", TOOLS.encode(record)) == record


def test_a_record_comes_back() -> None:
    assert TOOLS.decode("k", TOOLS.encode(HAMMER)) == HAMMER
    assert TOOLS.decode("k", TOOLS.encode(HAMMER).decode()) == HAMMER


@pytest.mark.parametrize(
    "old",
    [
        {"schema_version": 1, "name": "HAMMER", "cm": 30},
        {"name": "HAMMER", "cm": 30},
        {"schema_version": 2, "name": "hammer", "mm": 300},
        {"schema_version": 2, "name": "hammer", "mm": 300, "uses": {}, "bought_at": None},
    ],
    ids=["first", "first without its number", "second", "second with optional fields"],
)
def test_an_older_record_is_upgraded_step_by_step(old: dict[str, Any]) -> None:
    assert TOOLS.decode("k", msgspec.json.encode(old)) == HAMMER


def test_an_upgrade_reads_what_json_makes_of_keys_and_timestamps() -> None:
    old = {
        "schema_version": 2,
        "name": "x",
        "mm": 1,
        "uses": {"7": "nail"},
        "bought_at": "2026-01-01T00:00:00Z",
    }
    record = TOOLS.decode("k", msgspec.json.encode(old))
    assert record.uses == {7: "nail"} and record.bought_at is not None
    with pytest.raises(RecordInvalid, match="timezone"):
        TOOLS.decode("k", msgspec.json.encode({**old, "bought_at": "2026-01-01T00:00:00"}))


@pytest.mark.parametrize("version", [4, 1000, 1 << 64])
def test_a_newer_record_is_not_reported_as_damaged(version: int) -> None:
    with raises(SchemaTooNew, version=version) as caught:
        TOOLS.decode("k", msgspec.json.encode({"schema_version": version, "shape": "unheard of"}))
    assert caught.value.fields["version"] == version


@pytest.mark.parametrize("version", [0, -1, True, "3", None, 3.5, [3]])
def test_a_version_that_is_no_positive_integer_is_damage(version: Any) -> None:
    with pytest.raises(RecordInvalid, match="schema_version"):
        TOOLS.decode("k", msgspec.json.encode({"schema_version": version, "name": "x"}))


def test_damage_is_reported_with_its_reason_and_the_remedy() -> None:
    with pytest.raises(RecordInvalid, match="holdfast store remove") as caught:
        TOOLS.decode("k", b'{"schema_version":3,"name":5}')
    assert "`str`" in caught.value.fields["why"] and "$.name" in caught.value.fields["why"]


def test_only_the_spaces_own_model_and_version_are_written() -> None:
    class Other(Record, frozen=True, kw_only=True):
        schema_version: int = 3
        name: str = "x"

    class Finer(Tool, frozen=True, kw_only=True):
        pass

    for record in (Other(), Finer(name="x"), msgspec.structs.replace(HAMMER, schema_version=2)):
        with pytest.raises(InvalidValue, match="tools keeps Tool of version 3"):
            TOOLS.encode(record)  # type: ignore[arg-type]


def nested(depth: int) -> dict[str, Any]:
    inner: dict[str, Any] = {}
    for _ in range(depth):
        inner = {"a": inner}
    return inner


@pytest.mark.parametrize(
    "fields",
    [
        {"name": 5},
        {"name": "\ud800"},
        {"length_mm": None},
        {"length_mm": 1.5},
        {"uses": {"seven": "nail"}},
        {"notes": {"a": object()}},
        {"notes": nested(100_000)},
    ],
    ids=["number for text", "half a pair", "none", "float", "key", "object", "depth"],
)
def test_what_could_not_be_read_again_is_not_written(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match="cannot be stored"):
        TOOLS.encode(msgspec.structs.replace(HAMMER, **fields))


def test_a_nearly_full_stack_is_neither_damage_nor_a_wrong_value() -> None:
    """Until Python 3.11, JSON takes from the same stack as the calls of the program."""
    tool = msgspec.structs.replace(HAMMER, notes=nested(20))
    data = TOOLS.encode(tool)

    def act(frames: int) -> None:
        if frames:
            act(frames - 1)
        assert TOOLS.encode(tool) == data and TOOLS.decode("k", data) == tool

    depth = len(inspect.stack(0))
    for left in range(1, 60):
        with contextlib.suppress(RecursionError):
            act(sys.getrecursionlimit() - depth - left)


def test_a_record_may_have_its_bound_and_not_a_byte_more() -> None:
    room = RECORD_BYTES_MAX - len(TOOLS.encode(Tool(name="")))
    assert len(TOOLS.encode(Tool(name="x" * room))) == RECORD_BYTES_MAX
    with raises(InvalidValue, bytes=RECORD_BYTES_MAX + 1) as caught:
        TOOLS.encode(Tool(name="x" * (room + 1)))
    assert caught.value.fields["bytes"] == RECORD_BYTES_MAX + 1


def indexed(name_index: Any) -> Space[Tool]:
    return Space(
        "tools",
        Tool,
        schema_version=3,
        upgrades=TOOLS.upgrades,
        indexes={"by_length": lambda tool: (tool.length_mm, tool.name), "by_name": name_index},
    )


def test_an_index_is_a_function_of_the_record_in_the_declared_order() -> None:
    space = indexed(lambda tool: (tool.name,) if tool.name != "hidden" else None)
    assert space.index_keys(HAMMER) == [encode((300, "hammer")), encode(("hammer",))]
    assert space.index_keys(Tool(name="hidden")) == [encode((0, "hidden")), None]


def test_an_index_entry_has_a_bound() -> None:
    space = indexed(lambda tool: None)
    room = INDEX_BYTES_MAX - len(encode((0, "")))
    assert space.index_keys(Tool(name="x" * room))
    with pytest.raises(InvalidValue, match=f"may have {INDEX_BYTES_MAX}"):
        space.index_keys(Tool(name="x" * (room + 1)))


@pytest.mark.parametrize(
    "name", ["", "Tools", "my tools", "a.b", "a-b", "_a", "s;drop", "é", "a" * 129]
)
def test_a_name_that_could_not_name_a_table_is_refused(name: str) -> None:
    with pytest.raises(Misuse):
        Space(name, Tool, schema_version=3, upgrades=TOOLS.upgrades)
    with pytest.raises((InvalidName, InvalidValue)):
        Space(
            "tools",
            Tool,
            schema_version=3,
            upgrades=TOOLS.upgrades,
            indexes={name: lambda tool: None},
        )


@pytest.mark.parametrize(("upgrades", "missing"), [({}, 1), ({1: from_1}, 2), ({2: from_2}, 1)])
def test_a_space_without_a_way_from_each_older_version_is_refused(
    upgrades: dict[int, Any], missing: int
) -> None:
    with pytest.raises(InvalidValue, match=f"no upgrade from version {missing}"):
        Space("tools", Tool, schema_version=3, upgrades=upgrades)


class Plain(Record, frozen=True, kw_only=True):
    pass


def test_a_scope_is_latched_by_rank_then_by_name_each_space_once() -> None:
    late, hosts, routers, early = (
        Space(name, Plain, rank=rank) for name, rank in [("b", 100), ("h", 1), ("r", 2), ("a", 100)]
    )
    assert [s.name for s in spaces_of([late, routers, early, hosts, rows(hosts), late])] == [
        "h",
        "r",
        "a",
        "b",
    ]
    assert spaces_of([]) == []
    assert rows(hosts) == Rows(hosts)
