"""What the power-loss workload writes, and what a store must then hold: records in the journal
alone.

Every change appends one entry, and commits are in the order of their revisions. So a store after a
power loss is right if its journal is a beginning of the one that was written, its records are what
that beginning tells, and it goes at least as far as the last acknowledged revision.
"""

import itertools
import json
import os
import random
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

from holdfast.kernel.codec import Record
from holdfast.kernel.errors import HoldfastError
from holdfast.kernel.space import Space
from holdfast.kernel.store import BEGINNING, Entry, Store, Tx
from holdfast.stores.sqlite.store import SqliteStore
from proof.powerloss import Verdict

STORE = Path("state") / "store.sqlite"
"""Below the root: the store makes its own folder, whose name must last too."""


class Part(Record, frozen=True, kw_only=True):
    number: int
    filler: str = ""


LEFT = Space("powerloss_left", Part)
RIGHT = Space("powerloss_right", Part, indexes={"number": lambda part: (part.number,)})
LAST = Space("powerloss_last", Part)
TOKENS = Space("powerloss_tokens", Part, volatile=True)


def change(store: Store, writer: str, *, durable: bool) -> int:
    """Three records in three spaces and an entry, all or nothing; sometimes two older ones go."""

    def body(tx: Tx) -> int:
        last = tx.get(LAST, writer)
        number = last.record.number + 1 if last else 1
        for space, key, part in _puts(writer, number):
            tx.put(space, key, part)
        for space, key in _deletes(writer, number):
            tx.delete(space, key)
        tx.append(
            actor=writer, kind="changed", subject=f"{writer}/{number}", data={"number": number}
        )
        return tx.revision

    return store.transact(body, scope=[LEFT, RIGHT, LAST], durable=durable)


def look(store: Store) -> int:
    """The newest revision there is, read in a durable transaction that changes nothing: what it saw
    must last.
    """
    return store.transact(
        lambda tx: max((row.revision for row in tx.range(LAST)), default=0), scope=[LAST]
    )


def journal(store: Store) -> list[Entry]:
    entries: list[Entry] = []
    cursor = BEGINNING
    while batch := store.journal(cursor):
        if not batch.entries:
            break
        entries += batch.entries
        cursor = batch.cursor
    return entries


@cache
def _puts(writer: str, number: int) -> list[tuple[Space[Part], str, Part]]:
    # Of many sizes, so that pages are split, overflow and are freed again.
    filler = "x" * (number * 977 % 3001)
    return [
        (LEFT, f"{writer}-{number:04}", Part(number=number, filler=filler)),
        (RIGHT, f"{writer}-{number:04}", Part(number=number)),
        (LAST, writer, Part(number=number)),
    ]


@cache
def _deletes(writer: str, number: int) -> list[tuple[Space[Part], str]]:
    return (
        [(space, f"{writer}-{number - 2:04}") for space in (LEFT, RIGHT)] if number % 3 == 0 else []
    )


@cache
def _promise(message: bytes) -> dict[str, int]:
    promised: dict[str, int] = json.loads(message)
    return promised


@dataclass(frozen=True)
class StoreCheck:
    """Opens a state after the power loss, on another boot, and compares it with what was
    written.
    """

    written: list[tuple[int, str, int]]
    """Revision, writer and number of every change of the whole run."""

    @classmethod
    def of(cls, store: Store) -> Self:
        return cls([_summary(entry) for entry in journal(store)])

    def __call__(self, root: Path, acknowledged: Sequence[bytes], rng: random.Random) -> Verdict:
        promises = [_promise(message) for message in acknowledged]
        try:
            store = SqliteStore(root / STORE, boot_id="after")
        except HoldfastError as error:
            return Verdict(wrong=[f"it does not open: {error}"])
        try:
            wrong, seen = self._compare(store, promises)
            if not wrong and rng.random() < 0.1:
                wrong = self._use(store, promises)
                seen.append("used")
        except HoldfastError as error:
            return Verdict(wrong=[f"it opens but cannot be used: {error}"])
        finally:
            store.close()
        if not wrong and rng.random() < 0.1:
            wrong = _integrity(root / STORE)
            seen.append("integrity checked")
        return Verdict(wrong, seen)

    def _compare(self, store: Store, promises: list[dict[str, int]]) -> tuple[list[str], list[str]]:
        found = [_summary(entry) for entry in journal(store)]
        last = found[-1][0] if found else 0
        wrong = []
        if found != self.written[: len(found)]:
            wrong.append("its journal is not a beginning of what was written")
        if lost := [p["safe"] for p in promises if p.get("safe", 0) > last]:
            wrong.append(
                f"{len(lost)} acknowledged changes are lost, the first is {min(lost)}; it ends at "
                f"{last}"
            )
        if _records(store) != _expected(found):
            wrong.append("its records are not what its journal tells")
        seen = (
            ["lost an unacknowledged change"]
            if any(p.get("loose", 0) > last for p in promises)
            else []
        )
        return wrong, seen

    def _use(self, store: Store, promises: list[dict[str, int]]) -> list[str]:
        """Revisions and tokens go on above all that were given."""
        before = max((p.get("safe", 0) for p in promises), default=0)
        token_before = max((p.get("token", 0) for p in promises), default=0)
        wrong = []
        if change(store, "later", durable=True) <= before:
            wrong.append("a revision was given twice")
        token = store.put_new(TOKENS, [("later", Part(number=1))])
        if token is None or token <= token_before:
            wrong.append(f"token {token} came after {token_before}")
        return wrong


def _summary(entry: Entry) -> tuple[int, str, int]:
    return entry.revision, entry.actor, entry.data["number"]


def _records(store: Store) -> dict[tuple[str, str], tuple[int, Part]]:
    spaces = [LEFT, RIGHT, LAST]
    rows = store.read(lambda tx: {space.name: tx.range(space) for space in spaces}, scope=spaces)
    return {
        (space, row.key): (row.revision, row.record)
        for space, found in rows.items()
        for row in found
    }


def _expected(steps: list[tuple[int, str, int]]) -> dict[tuple[str, str], tuple[int, Part]]:
    records = {}
    for revision, writer, number in steps:
        for space, key, part in _puts(writer, number):
            records[space.name, key] = revision, part
        for space, key in _deletes(writer, number):
            del records[space.name, key]
    return records


def _integrity(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    try:
        rows = connection.execute("PRAGMA integrity_check").fetchall()
    finally:
        connection.close()
    return (
        []
        if rows == [("ok",)]
        else [f"integrity_check: {row[0]}" for row in itertools.islice(rows, 3)]
    )


class Acknowledgements:
    """The workload's side: one write a promise, seen by strace."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND)

    def tell(self, **promise: int) -> None:
        os.write(self._fd, json.dumps(promise).encode())
