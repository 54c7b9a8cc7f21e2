"""Random sequences of the port's operations on every store, each answer compared with a
plain-Python oracle.

To add a store, write a function like `sqlite` below and give it to `agree` in a test of its own.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from holdfast.kernel.codec import Record, to_plain
from holdfast.kernel.layout import FilePerRecord, OneFile, Wire
from holdfast.kernel.space import Space, rows
from holdfast.kernel.store import BEGINNING, Entry, Row, Store
from holdfast.stores.files.store import FilesStore
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.clock import ManualClock
from tests.model.oracle import Numbers, Oracle, OracleEntry, OracleRow
from tests.model.search import search

pytestmark = pytest.mark.prove

# --- the stores ---


class Subject:
    """A store under test, the oracle beside it, and how its numbers compare."""

    def __init__(
        self, name: str, open: Callable[[], Store], *, reopens: bool, clocked: bool, journals: int
    ) -> None:
        self.name = name
        self.open = open
        self.reopens = reopens
        self.clocked = clocked
        """Its clock is the machine's; one with a clock of its own (a database) is not asked to trim
        by age.
        """
        self.store = open()
        self.oracle = Oracle(
            lambda volatile: "volatile" if volatile and journals == 2 else "durable"
        )
        self.numbers: dict[str, Numbers] = {}

    def numbers_of(self, volatile: bool) -> Numbers:
        """Numbers are compared within what shares a counter."""
        return self.numbers.setdefault(self.oracle.journal_of(volatile), Numbers())


Maker = Callable[[Path, ManualClock], Subject]


def memory(folder: Path, clock: ManualClock) -> Subject:
    return Subject(
        "memory", lambda: MemoryStore(clock=clock), reopens=False, clocked=True, journals=1
    )


def sqlite(folder: Path, clock: ManualClock) -> Subject:
    def open() -> Store:
        return SqliteStore(folder / "store.sqlite", boot_id="boot-1", clock=clock)

    return Subject("sqlite", open, reopens=True, clocked=True, journals=2)


def files(folder: Path, clock: ManualClock) -> Subject:
    return Subject(
        "files",
        lambda: FilesStore(folder / "files", boot_id="boot-1", clock=clock),
        reopens=True,
        clocked=True,
        journals=2,
    )


# --- the records ---


class Thing(Record, frozen=True, kw_only=True):
    owner: str
    rank: int
    hot: bool


def _place(thing: Thing) -> tuple[str, int] | None:
    return None if thing.owner == "nobody" else (thing.owner, thing.rank)


def _heat(thing: Thing) -> tuple[bool, str]:
    return (thing.hot, thing.owner)


def _thing(_: str, document: dict[str, Any]) -> Thing:
    return msgspec.convert(document, Thing)


INDEXES: dict[str, Callable[[Thing], Any]] = {"place": _place, "heat": _heat}
# The layouts count for the files store alone.
THINGS = Space(
    "model_things",
    Thing,
    indexes=INDEXES,
    layout=FilePerRecord("model", "things/{key}.json", Wire(to_plain, _thing)),
)
OTHERS = Space(
    "model_others",
    Thing,
    indexes=INDEXES,
    layout=OneFile("model", "others.json", Wire(to_plain, _thing)),
)
VOLATILE = Space("model_volatile", Thing, indexes=INDEXES, volatile=True)
BY_RESIDENCE = {False: [THINGS, OTHERS], True: [VOLATILE]}

# Small pools with awkward members, so that operations meet on the same keys and bounds.
KEYS = [
    "a",
    "a!",
    "a/b",
    "aa",
    "a\ud7ff",
    "b",
    "é",
    "\ue000",
    "\U0001f600",
    "\U0010ffff",
    "\U0010ffffa",
]
OWNERS = ["", "x", "x\0", "x\x01", "xy", "\xff", "nobody", "\U0010ffff"]
RANKS = [-(1 << 63), -1, 0, 1, 2, 255, 256, (1 << 63) - 1]

keys = st.sampled_from(KEYS)
owners, ranks = st.sampled_from(OWNERS), st.sampled_from(RANKS)
things = st.builds(Thing, owner=owners, rank=ranks, hot=st.booleans())
limits = st.none() | st.integers(0, 4)
PARTS: dict[str, list[st.SearchStrategy[Any]]] = {
    "place": [owners, ranks],
    "heat": [st.booleans(), owners],
}


@dataclass(frozen=True, repr=False)
class Op:
    """One verb of a transaction and what it is called with."""

    verb: str
    arguments: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self, tx: Any) -> Any:
        found = getattr(tx, self.verb)
        return found(*self.arguments, **self.options) if callable(found) else found

    def __repr__(self) -> str:
        named = [f"{name}={value!r}" for name, value in self.options.items()]
        return f"{self.verb}({', '.join([*(getattr(a, 'name', None) or repr(a) for a in self.arguments), *named])})"


@st.composite
def _options(draw: st.DrawFn, bounds: st.SearchStrategy[Any]) -> dict[str, Any]:
    drawn = {
        "start": draw(st.none() | bounds),
        "stop": draw(st.none() | bounds),
        "limit": draw(limits),
    }
    return {
        **{name: value for name, value in drawn.items() if value is not None},
        "reverse": draw(st.booleans()),
    }


@st.composite
def _ranges(draw: st.DrawFn, space: Space[Thing]) -> Op:
    prefix = draw(st.just("") | keys | keys.map(lambda key: key[:1]))
    return Op("range", (space,), {"prefix": prefix, **draw(_options(st.just("") | keys))})


@st.composite
def _finds(draw: st.DrawFn, space: Space[Thing]) -> Op:
    index = draw(st.sampled_from(sorted(PARTS)))
    parts = PARTS[index]
    match = draw(_tuples(parts))
    return Op("find", (space, index, match), draw(_options(_tuples(parts[len(match) :]))))


@st.composite
def _counts_and_takes(draw: st.DrawFn, space: Space[Thing], verb: str) -> Op:
    index = draw(st.sampled_from(sorted(PARTS)))
    return Op(verb, (space, index, draw(_tuples(PARTS[index]))))


def _tuples(parts: Sequence[st.SearchStrategy[Any]]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.integers(0, len(parts)).flatmap(lambda n: st.tuples(*parts[:n]))


def looks(space: Space[Thing]) -> st.SearchStrategy[Op]:
    return (
        keys.map(lambda key: Op("get", (space, key)))
        | _ranges(space)
        | _finds(space)
        | _counts_and_takes(space, "count")
        | st.just(Op("count", (space,)))
    )


def changes(space: Space[Thing]) -> st.SearchStrategy[Op]:
    return (
        st.tuples(keys, things).map(lambda it: Op("put", (space, *it)))
        | keys.map(lambda key: Op("delete", (space, key)))
        | _counts_and_takes(space, "take_first")
        | st.integers(0, 9).map(
            lambda n: Op(
                "append", (), {"actor": "m", "kind": "k", "subject": f"s{n}", "data": {"n": n}}
            )
        )
        | st.just(Op("revision"))
    )


def of_residence(
    kinds: Callable[[Space[Thing]], st.SearchStrategy[Op]], volatile: bool, size: int
) -> st.SearchStrategy[list[Op]]:
    return st.lists(
        st.sampled_from(BY_RESIDENCE[volatile]).flatmap(kinds), min_size=1, max_size=size
    )


either = st.booleans()
reads = either.flatmap(
    lambda volatile: st.tuples(st.just(volatile), of_residence(looks, volatile, 5))
)
writes = either.flatmap(
    lambda volatile: st.tuples(
        st.just(volatile), of_residence(lambda s: changes(s) | looks(s), volatile, 6)
    )
)
spaces = st.sampled_from([THINGS, VOLATILE])
clock_steps = st.sampled_from([0.0, 0.000001, 1.0, 7.0, -0.5, -3.0])


class Mishap(Exception):
    """Raised by a body that fails on purpose."""


# --- the machine ---


class StoreMachine(RuleBasedStateMachine):
    """Each rule does one thing to every subject and to the oracle beside it."""

    cursors: Bundle[dict[str, Any]] = Bundle("cursors")
    tokens: Bundle[int] = Bundle("tokens")

    def __init__(self, makers: Sequence[Maker]) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.folder = tempfile.TemporaryDirectory()
        self.subjects = [maker(Path(self.folder.name), self.clock) for maker in makers]

    def teardown(self) -> None:
        for subject in self.subjects:
            subject.store.close()
        self.folder.cleanup()

    @initialize(
        target=cursors,
        answered=st.integers(0, 3),
        items=st.dictionaries(keys, things, min_size=1, max_size=6),
    )
    def furnish(self, answered: int, items: dict[str, Thing]) -> dict[str, Any]:
        """Few sequences that start from nothing get anywhere."""
        for space in (THINGS, VOLATILE):
            self.put_new(space, items)
            for n in range(answered):
                self.tell(space.volatile, float(n), 1)
        beginning = self.beginning()
        assert isinstance(beginning, dict)
        return beginning

    # Transactions of several steps, read or written, kept or failed.

    @rule(drawn=writes, fails=st.sampled_from([False, False, False, True]), durable=st.booleans())
    def transact(self, drawn: tuple[bool, list[Op]], fails: bool, durable: bool) -> None:
        volatile, ops = drawn

        def body(tx: Any) -> list[Any]:
            answers = _answers(ops, tx)
            if fails:
                raise Mishap(answers)
            return answers

        for subject in self.subjects:
            expected = _outcome(
                subject.oracle.transact, body, now=self.clock.now(), volatile=volatile
            )
            answers = _outcome(
                subject.store.transact, body, scope=BY_RESIDENCE[volatile], durable=durable
            )
            # What a failed transaction was numbered is given again, so it is not to be remembered.
            self.compare(subject, volatile, ops, expected, answers, numbered=not fails)

    @rule(drawn=reads)
    def read(self, drawn: tuple[bool, list[Op]]) -> None:
        volatile, ops = drawn
        for subject in self.subjects:
            self.look(subject, volatile, ops)

    @rule(space=spaces, index=st.sampled_from(sorted(PARTS)), owner=owners)
    def take(self, space: Space[Thing], index: str, owner: str) -> None:
        """As a queue does: the first of an index, changed so that it is not the first again."""

        def body(tx: Any) -> Any:
            row = tx.take_first(space, index)
            if row is not None:
                tx.put(space, row.key, Thing(owner=owner, rank=row.record.rank, hot=True))
            return row

        for subject in self.subjects:
            expected = subject.oracle.transact(body, now=self.clock.now(), volatile=space.volatile)
            answer = subject.store.transact(body, scope=[rows(space)])
            self.compare(subject, space.volatile, [Op("take_first")], [expected], [answer])

    # One-statement paths.

    @rule(target=tokens, space=spaces, items=st.dictionaries(keys, things, min_size=1, max_size=3))
    def put_new(self, space: Space[Thing], items: dict[str, Thing]) -> int:
        tokens = []
        for subject in self.subjects:
            expected = subject.oracle.put_new(space, list(items.items()), self.clock.now())
            token = subject.store.put_new(space, list(items.items()))
            assert (token is None) == (expected is None), (subject.name, token, expected)
            if token is not None and expected is not None:
                subject.numbers_of(space.volatile).match(expected, token)
            tokens.append(expected)
        assert len(set(tokens)) == 1
        return tokens[0] or 0

    @rule(space=spaces, chosen=st.lists(keys, min_size=1, max_size=4), token=tokens)
    def delete_if(self, space: Space[Thing], chosen: list[str], token: int) -> None:
        for subject in self.subjects:
            theirs = subject.numbers_of(space.volatile).theirs(token)
            expected = subject.oracle.delete_if(space, chosen, token, self.clock.now())
            # A token of the other residence is a number that this one never gave.
            deleted = subject.store.delete_if(space, chosen, theirs or 7)
            assert deleted == expected, (subject.name, deleted, expected)

    @rule(space=spaces, key=keys)
    def get(self, space: Space[Thing], key: str) -> None:
        for subject in self.subjects:
            op = Op("get", (space, key))
            expected = subject.oracle.transact(op, now=self.clock.now(), volatile=space.volatile)
            self.compare(subject, space.volatile, [op], [expected], [subject.store.get(space, key)])

    # The journal.

    @rule(volatile=either, step_s=clock_steps, number=st.integers(1, 3))
    def tell(self, volatile: bool, step_s: float, number: int) -> None:
        self.clock.advance(step_s)
        ops = [
            Op("append", (), {"actor": "m", "kind": "k", "subject": f"told {n}"})
            for n in range(number)
        ]
        body = partial(_answers, ops)
        for subject in self.subjects:
            expected = subject.oracle.transact(body, now=self.clock.now(), volatile=volatile)
            answers = subject.store.transact(body, scope=BY_RESIDENCE[volatile])
            self.compare(subject, volatile, ops, expected, answers)

    @rule(
        volatile=either,
        keep=st.integers(1, 6) | st.just(100),
        entry=st.integers(0, 9),
        step_s=st.just(0.0) | clock_steps,
    )
    def trim(self, volatile: bool, keep: int, entry: int, step_s: float) -> None:
        """By number, and by an age near that of one of the entries."""
        for subject in self.subjects:
            journal = subject.oracle.state.journals.get(subject.oracle.journal_of(volatile), [])
            before = datetime(1970, 1, 1, tzinfo=UTC)
            if subject.clocked and journal:
                before = journal[entry % len(journal)].at + timedelta(seconds=step_s)
            op = Op("trim", (), {"keep": keep, "before": before})
            expected = subject.oracle.transact(op, now=self.clock.now(), volatile=volatile)
            answer = subject.store.transact(op, scope=BY_RESIDENCE[volatile])
            self.compare(subject, volatile, [op], [expected], [answer])

    @rule(target=cursors)
    def beginning(self) -> dict[str, Any]:
        return {subject.name: (BEGINNING, {}) for subject in self.subjects}

    @rule(target=cursors, cursor=cursors, limit=st.integers(1, 5) | st.just(1000))
    def follow(self, cursor: dict[str, Any], limit: int) -> dict[str, Any]:
        after: dict[str, Any] = {}
        for subject in self.subjects:
            place, seen = cursor[subject.name]
            batch = subject.store.journal(place, limit=limit)
            waiting = {
                name: [entry for entry in entries if entry.revision > seen.get(name, 0)]
                for name, entries in subject.oracle.state.journals.items()
            }
            read = self.same_entries(subject, batch.entries, waiting, limit)
            after[subject.name] = (
                batch.cursor,
                {**seen, **{name: got[-1].revision for name, got in read.items() if got}},
            )
        return after

    @rule(target=cursors, cursor=cursors, limit=st.integers(1, 5) | st.just(1000))
    def look_back(self, cursor: dict[str, Any], limit: int) -> dict[str, Any]:
        after: dict[str, Any] = {}
        for subject in self.subjects:
            batch = subject.store.journal(cursor[subject.name][0], limit=limit, reverse=True)
            journals = subject.oracle.state.journals
            self.same_entries(
                subject,
                batch.entries,
                {name: entries[::-1] for name, entries in journals.items()},
                limit,
            )
            ends = {name: entries[-1].revision for name, entries in journals.items() if entries}
            after[subject.name] = (batch.cursor, ends)
        return after

    # Its life.

    @rule()
    def reopen(self) -> None:
        for subject in self.subjects:
            if subject.reopens:
                subject.store.close()
                subject.store = subject.open()

    @invariant()
    def everything_is_where_it_should_be(self) -> None:
        for subject in self.subjects:
            for volatile, chosen in BY_RESIDENCE.items():
                self.look(subject, volatile, [Op("range", (space,)) for space in chosen])

    # Comparing.

    def compare(
        self,
        subject: Subject,
        volatile: bool,
        ops: Sequence[Op],
        expected: Sequence[Any],
        answers: Sequence[Any],
        *,
        numbered: bool = True,
    ) -> None:
        for op, ours, theirs in zip(ops, expected, answers, strict=True):
            reported = f"{subject.name}: {op!r} answered {theirs!r} instead of {ours!r}"
            if op.verb in ("revision", "append"):
                assert type(theirs) is int, reported
                pairs = [(ours, theirs)]
            else:
                assert _without_numbers(theirs) == _without_numbers(ours), reported
                pairs = list(zip(_numbers(ours), _numbers(theirs), strict=True))
            for pair in pairs if numbered else []:
                subject.numbers_of(volatile).match(*pair)

    def look(self, subject: Subject, volatile: bool, ops: Sequence[Op]) -> None:
        """Read, and compare."""
        body = partial(_answers, ops)
        expected = subject.oracle.transact(body, now=self.clock.now(), volatile=volatile)
        self.compare(
            subject, volatile, ops, expected, subject.store.read(body, scope=BY_RESIDENCE[volatile])
        )

    def same_entries(
        self,
        subject: Subject,
        entries: list[Entry],
        waiting: dict[str, list[OracleEntry]],
        limit: int,
    ) -> dict[str, list[OracleEntry]]:
        """Each journal's entries come in its order and without a gap, as many as the limit allows
        in all.
        """
        note(f"{subject.name}: {[entry.subject for entry in entries]}")
        assert len(entries) == min(limit, sum(map(len, waiting.values())))
        read: dict[str, list[OracleEntry]] = {name: [] for name in waiting}
        for entry in entries:
            name = self.journal_that_has(subject, entry, waiting, read)
            read[name].append(waiting[name][len(read[name])])
            subject.numbers[name].match(read[name][-1].revision, entry.revision)
        return read

    def journal_that_has(
        self,
        subject: Subject,
        entry: Entry,
        waiting: dict[str, list[OracleEntry]],
        read: dict[str, list[OracleEntry]],
    ) -> str:
        for name, entries in waiting.items():
            if len(read[name]) < len(entries):
                ours = entries[len(read[name])]
                number = subject.numbers[name].theirs(ours.revision)
                at = not subject.clocked or entry.at == ours.at
                if (
                    number == entry.revision
                    and at
                    and (entry.subject, entry.data) == (ours.subject, ours.data)
                ):
                    return name
        raise AssertionError(
            f"{subject.name}: entry {entry!r} is not the next of any of {waiting!r}, of which "
            f"{read!r} came"
        )


def _answers(ops: Sequence[Op], tx: Any) -> list[Any]:
    return [op(tx) for op in ops]


def _outcome(
    transact: Callable[..., list[Any]], body: Callable[[Any], list[Any]], **how: Any
) -> list[Any]:
    """The answers, also those of a body that failed after them."""
    try:
        return transact(body, **how)
    except Mishap as mishap:
        answers: list[Any] = mishap.args[0]
        return answers


def _rows(answer: Any) -> list[Any]:
    found = answer if isinstance(answer, list) else [answer]
    return [row for row in found if isinstance(row, Row | OracleRow)]


def _without_numbers(answer: Any) -> Any:
    return [(row.key, row.record) for row in _rows(answer)] or answer


def _numbers(answer: Any) -> list[int]:
    return [row.revision for row in _rows(answer)]


def agree(*makers: Maker) -> None:
    """Run the machine over these stores at once."""
    search(lambda: StoreMachine(makers), examples=120, steps=30, same=False)


def test_memory_and_sqlite_agree_with_the_oracle() -> None:
    agree(memory, sqlite)


@pytest.mark.prove
def test_files_agree_with_the_oracle() -> None:
    agree(files)


@pytest.mark.prove
def test_postgres_agrees_with_the_oracle(postgres_url: str) -> None:
    from holdfast.stores.postgres import open_postgres

    namespaces = count()

    def postgres(folder: Path, clock: ManualClock) -> Subject:
        """Each example in a namespace of its own, which is quicker made than a database."""
        namespace = f"example-{next(namespaces)}"
        return Subject(
            "postgres",
            lambda: open_postgres(postgres_url, namespace),
            reopens=True,
            clocked=False,
            journals=1,
        )

    agree(postgres)


def test_memory_keeps_the_newest_entry_written_by_a_clock_stepped_back() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    begin = clock.now()
    for subject in ("older", "newest"):
        store.transact(Op("append", (), {"actor": "m", "kind": "k", "subject": subject}), scope=[])
        clock.advance(-3)
    store.transact(Op("trim", (), {"keep": 100, "before": begin}), scope=[])
    assert [entry.subject for entry in store.journal().entries] == ["older", "newest"]
