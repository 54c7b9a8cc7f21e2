"""The text of a file of many records: changes are spliced into it, and found in it."""

import json
import random
from typing import Any

import pytest

from holdfast.domains.network.wire import HOST_LEASES_FILE, HOSTS, HOSTS_FILE
from holdfast.kernel.layout import OneFile
from holdfast.stores.files.documents import ParsedFile, render
from holdfast.stores.files.members import changed_members, composed, spliced
from holdfast.stores.files.records import RecordSet, StoredDocument
from tests.stores.files_spaces import LEASES

Documents = dict[str, Any]

KEYS = ["a", "b", "b-1", "b-10", "ba", 'q"', "\\", "ä", "\U0001f600", '": ', "\n", "z"]


def a_document(dice: random.Random) -> Any:
    text = dice.choice(["x", "\n  ", ',\n  "b": {', "  }", 'q"', "\\", "ä" * 40, "y" * 5000])
    return dice.choice([{}, {"b": text, "a": {"deep": [text, {}]}}, {"ip": text}, [text], 1, None])


def some_documents(dice: random.Random, most: int) -> Documents:
    return {key: a_document(dice) for key in dice.sample(KEYS, dice.randrange(most))}


def records_of(documents: Documents) -> RecordSet[Any]:
    entries = {key: StoredDocument[Any](document) for key, document in documents.items()}
    return RecordSet(HOSTS, HOSTS_FILE.wire, entries)


def documents_in(records: RecordSet[Any]) -> Documents:
    return {key: entry.document for key, entry in records.entries.items()}


def test_the_composed_file_is_the_rendered_object() -> None:
    dice = random.Random(1)
    for _ in range(200):
        documents = some_documents(dice, len(KEYS))
        assert composed(records_of(documents)) == render(documents)


def test_a_change_is_spliced_into_its_place() -> None:
    dice, removals = random.Random(2), 0
    for _ in range(2000):
        documents = some_documents(dice, len(KEYS))
        records = records_of(documents)
        changed = some_documents(dice, 5)
        changes: dict[str, StoredDocument[Any] | None] = {
            key: StoredDocument(document) for key, document in changed.items()
        }
        if removed := dice.random() < 0.1 and bool(documents):
            changes[dice.choice(list(documents))] = None
        after = records.changed(changes)
        data = spliced(records, composed(records), changes)
        if removed or not documents:
            removals += 1
            assert data is None
        else:
            assert data == composed(after) == render({**documents, **changed})
    assert 100 < removals < 1000


@pytest.mark.parametrize("known_to_be_ours", [False, True])
def test_what_another_process_has_changed_is_found(known_to_be_ours: bool) -> None:
    dice, parsed_whole = random.Random(3), 0
    for _ in range(2000):
        before = records_of(some_documents(dice, len(KEYS)))
        file = ParsedFile(composed(before), is_ours=known_to_be_ours)
        after = {**documents_in(before), **some_documents(dice, 4)}
        for key in dice.sample(sorted(after), min(dice.randrange(3), len(after))):
            del after[key]
        changes = changed_members(HOSTS_FILE, file, before, render(after))
        if changes is None:
            parsed_whole += 1
            assert not before.entries or not after
            continue
        # As JSON: for Python 1 and True are equal.
        assert json.dumps(documents_in(before.changed(changes)), sort_keys=True) == json.dumps(
            after, sort_keys=True
        )
        same = documents_in(before).items()
        assert not [key for key, one in same if key in changes and after.get(key, ...) is one]
        assert composed(before.changed(changes)) == render(after)
    assert parsed_whole < 400


def test_a_file_that_was_damaged_or_written_otherwise_is_parsed_whole() -> None:
    """Whatever is done to the bytes, the result is that of parsing them, or none."""
    dice, merged, refused = random.Random(4), 0, 0
    for _ in range(4000):
        before = records_of({"a": {}, **some_documents(dice, len(KEYS))})
        text = bytearray(composed(before))
        for _ in range(dice.randrange(1, 3)):
            at = dice.randrange(len(text) + 1)
            to = min(at + dice.choice([0, 1, 1, 5, 40]), len(text))
            piece = dice.choice(
                [b"", b"x", b" ", b"\n", b",", b'"', b"}", b"{", text[max(at - 30, 0) : at]]
            )
            text[at:to] = piece
        changes = changed_members(HOSTS_FILE, ParsedFile(composed(before)), before, bytes(text))
        if changes is None:
            refused += 1
            continue
        merged += 1
        pairs = json.loads(bytes(text), object_pairs_hook=lambda pairs: pairs)
        assert len(dict(pairs)) == len(pairs)
        after = documents_in(before.changed(changes))
        assert json.dumps(after, sort_keys=True) == json.dumps(
            json.loads(bytes(text)), sort_keys=True
        )
    assert merged > 20
    assert refused > 2000


def test_only_a_file_of_one_space_by_key_is_merged() -> None:
    before = records_of({"a": {"b": 1}, "c": {}})
    data = render({"a": {"b": 1}, "b": {}, "c": {}})
    assert isinstance(shared := LEASES.layout, OneFile)
    assert changed_members(HOST_LEASES_FILE, ParsedFile(composed(before)), before, data)
    assert changed_members(shared, ParsedFile(composed(before)), before, data) is None
    hand_written = ParsedFile(b'{"a": {"b": 1}, "c": {}}')
    assert changed_members(HOSTS_FILE, hand_written, before, data) is None
