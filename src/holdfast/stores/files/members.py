"""A file that is an object of one space's documents by key, as text: each document is a member,
rendered once, in the order of the keys.

Such a file may have thousands of members, of which a change has one. So a change splices the new
member into the text, and a reader parses only the members that differ from those it knows. Both
rely on the form of the text: a line with two spaces and a quote begins a member, and nothing else
does, because JSON text has no line break inside a string.
"""

from bisect import bisect_left
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import msgspec

from holdfast.kernel.layout import FilePerRecord, OneFile
from holdfast.kernel.space import R
from holdfast.stores.files.documents import ParsedFile, parse, render
from holdfast.stores.files.records import RecordSet, StoredDocument

_BEGIN, _BETWEEN, _END = b"{\n", b",\n", b"\n}\n"
_NEXT = b',\n  "'
_CHUNK = 16 << 10


def is_whole_file(layout: OneFile[Any] | FilePerRecord[Any]) -> bool:
    """Is the file an object of this space's documents by key, and nothing else?"""
    return isinstance(layout, OneFile) and layout.part is None and layout.gather is dict


def composed(records: RecordSet[Any]) -> bytes:
    """The file of these records: equal to `render` of the whole object."""
    entries = records.entries
    parts = [entries[key].written or entries[key].rendered(key) for key in records.sorted_keys()]
    return b"".join((_BEGIN, _BETWEEN.join(parts), _END)) if parts else render({})


def spliced(
    records: RecordSet[R],
    data: bytes | None,
    changes: Mapping[str, StoredDocument[R] | None],
) -> bytes | None:
    """The file with changes, where `data` is the one that was composed of these records. None for a
    change that removes a record, and for an empty file: those are composed anew.
    """
    keys = records.sorted_keys()
    if data is None or not keys:
        return None
    pieces: list[bytes] = []
    at = 0
    for key in sorted(changes):
        entry = changes[key]
        if entry is None:
            return None
        number, begin = bisect_left(keys, key), len(data) - len(_END)
        before, behind = _BETWEEN, b""
        end = begin
        if number < len(keys):
            end = begin = _begin_of(data, keys[number], number / len(keys))
            before, behind = b"", _BETWEEN
            if keys[number] == key:
                end, behind = begin + len(records.entries[key].rendered(key)), b""
        pieces += (data[at:begin], before, entry.rendered(key), behind)
        at = end
    return b"".join((*pieces, data[at:]))


def changed_members(
    layout: OneFile[R], file: ParsedFile, records: RecordSet[R], data: bytes
) -> dict[str, StoredDocument[R] | None] | None:
    """What has changed from a known file to its next content; None where that can only be found by
    parsing the whole: one of both was written by another program, or by hand.
    """
    old = file.data
    if not is_whole_file(layout) or old is None or not records.entries:
        return None
    if not file.is_ours and composed(records) != old:
        return None
    file.is_ours = True
    if not (data.startswith(_BEGIN) and data.endswith(_END)):
        return None
    # The common members at the beginning and at the end. What is left begins with a member.
    same = _common(old, data, min(len(old), len(data)))
    begin = max(old.rfind(_NEXT, 0, same) + len(_BETWEEN), len(_BEGIN))
    same = _common_end(old, data, min(len(old), len(data)) - begin)
    cut = old.find(_NEXT, len(old) - same)
    behind = len(_END) if cut < 0 else len(old) - cut
    try:
        before: dict[str, Any] = parse(b"{%b}" % old[begin:-behind])
        after: dict[str, Any] = parse(b"{%b}" % data[begin:-behind])
    except ValueError:
        return None
    first = bisect_left(keys := records.sorted_keys(), next(iter(before)))
    last = first + len(before)
    order = [*keys[first - 1 : first], *after, *keys[last : last + 1]]
    entries = {key: StoredDocument[R](document) for key, document in after.items()}
    text = _BETWEEN.join(entry.rendered(key) for key, entry in entries.items())
    in_order = all(one < other for one, other in pairwise(order))
    if not after or not in_order or text != data[begin:-behind]:
        return None
    return {
        **dict.fromkeys(before.keys() - after.keys()),
        **{key: entry for key, entry in entries.items() if not _is_known(records, key, entry)},
    }


def _is_known(records: RecordSet[R], key: str, entry: StoredDocument[R]) -> bool:
    known = records.entries.get(key)
    return known is not None and known.rendered(key) == entry.rendered(key)


def _begin_of(data: bytes, key: str, place: float) -> int:
    """Where a member begins, searched for around its place between 0 and 1."""
    line = b"\n  %b: " % msgspec.json.encode(key)
    guess, width = int(place * len(data)), _CHUNK
    while True:
        found = data.find(line, max(guess - width, 0), guess + width)
        if found >= 0 or width > len(data):
            assert found >= 0
            return found + 1
        width *= 4


def _common(one: bytes, other: bytes, most: int) -> int:
    """How many bytes at the beginning are the same, of at most so many."""
    at, step = 0, _CHUNK
    while at < most and step:
        if at + step <= most and one[at : at + step] == other[at : at + step]:
            at += step
        else:
            step //= 2
    return at


def _common_end(one: bytes, other: bytes, most: int) -> int:
    """How many bytes at the end are the same, of at most so many."""
    at, step, ones, others = 0, _CHUNK, len(one), len(other)
    while at < most and step:
        if (
            at + step <= most
            and one[ones - at - step : ones - at] == other[others - at - step : others - at]
        ):
            at += step
        else:
            step //= 2
    return at
