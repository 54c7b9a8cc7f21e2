"""How the cost of the journal grows with its entries, and how much room they take."""

import sqlite3
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import holdfast
from bench.measure import Lab, Sample, alone
from bench.report import Row, Scale, Verdict, growth_verdict
from bench.scale import Growth, filling, fitting, p50_s, series_of
from holdfast.kernel.codec import to_json
from holdfast.kernel.settings import JournalSettings
from holdfast.kernel.store import Cursor, Entry, Tx
from holdfast.primitives.journal import Journal

NAME = "scale-journal"

_SIZES = (100, 10_000, 1_000_000, 10_000_000)
_QUICK_SIZES = (10, 100, 1000)
_ENTRY_BYTES = 200
_READ = 100
_APART_S = 0.001
_RECENT_S = 0.1
_RARE = "job-rare"
_KEEP_S = 10 * 365 * 24 * 3600.0

_CALLS = (
    "Holdfast, append",
    f"Holdfast, the last {_READ}",
    f"Holdfast, {_READ} behind a cursor",
    f"Holdfast, the last {_RECENT_S:g} s",
    "Holdfast, the last 3 of a subject",
    "Holdfast, append and trim, not synced",
)
_FILE, _ENTRY = "Holdfast, file in MB", "Holdfast, bytes an entry"
_SCALE = Scale("entries", "milliseconds, less is better", lambda sample: sample.p50_s * 1000)
_SPACE = Scale("entries", "MB, or bytes; less is better", lambda sample: sample.value)


def measure(lab: Lab) -> list[Row]:
    with lab.folder() as folder:
        sizes, note = fitting(folder, _QUICK_SIZES if lab.quick else _SIZES, _ENTRY_BYTES)
        samples = alone(_measure, folder, sizes, lab.quick)
    series, space = series_of(samples, _CALLS), series_of(samples, (_FILE, _ENTRY))
    return [
        Row(
            name="scale-journal",
            title="Journal: cost of a call as it grows",
            says="SQLite, one process, appends are durable. The journal is kept at its size, so each "
            "trim drops as many entries as were appended since the last one.",
            series=series,
            verdicts=[
                growth_verdict(_SCALE, series, name, since=sizes[1], at_most=3, of=p50_s)
                for name in _CALLS
            ],
            kind="scale",
            scale=_SCALE,
            logarithmic=True,
            notes=note,
        ),
        Row(
            name="scale-journal-size",
            title="Journal: room on disk",
            says="The store's file with entries of a registered job, as Holdfast writes them.",
            series=space,
            verdicts=[_entry_bytes(space, sizes[-1])],
            kind="scale",
            scale=_SPACE,
            logarithmic=True,
        ),
    ]


def _entry_bytes(series: Sequence[Any], size: int) -> Verdict:
    last = next(
        one for one in series if one.contender.name == _ENTRY and one.contender.size == size
    )
    return Verdict("bytes an entry", "", last.spread(lambda sample: sample.value), None)


def _measure(
    folder: Path, sizes: Sequence[int], quick: bool
) -> dict[tuple[str, int], list[Sample]]:
    growth, path = Growth(quick=quick), folder / "store.sqlite"
    with _connected(path) as hf:
        hf.jobs.register_job("one of many", agent="claude", agent_session="tmux:agent-00")
        [model] = hf.store.journal().entries
    have = 1
    for size in sizes:
        with filling(path) as raw:
            _fill(raw, model, size - have, behind=sizes[-1] - have)
        with _connected(path) as hf:
            journal = Journal(
                hf.store, actor="bench", keep=JournalSettings(keep_entries=size, keep_s=_KEEP_S)
            )
            hf.store.transact(journal.trim, scope=[])
            for _ in range(3):
                _append(hf, _RARE)
            megabytes = path.stat().st_size / 1e6
            growth.figure(size, _FILE, megabytes)
            growth.figure(size, _ENTRY, megabytes * 1e6 / size)
            growth.measure(size, _calls(hf, journal))
            hf.store.transact(journal.trim, scope=[])
        have = size
    return growth.samples


def _connected(path: Path) -> holdfast.Holdfast:
    return holdfast.connect(f"sqlite:{path}")


def _append(hf: holdfast.Holdfast, subject: str, *, trim: Journal | None = None) -> None:
    def body(tx: Tx) -> None:
        tx.append(actor="bench", kind="job.registered", subject=subject)
        if trim is not None:
            trim.trim(tx)

    hf.store.transact(body, scope=[], durable=trim is None)


def _calls(hf: holdfast.Holdfast, journal: Journal) -> dict[str, Any]:
    begun: Cursor = hf.store.journal(limit=1).cursor
    newest = journal.tail(1)[0][0].at

    calls = (
        lambda: _append(hf, "job-x"),
        lambda: journal.tail(_READ),
        lambda: hf.store.journal(begun, limit=_READ),
        lambda: journal.chosen(begin=newest - timedelta(seconds=_RECENT_S)),
        lambda: journal.chosen(subject=_RARE, limit=3),
        lambda: _append(hf, "job-x", trim=journal),
    )
    return dict(zip(_CALLS, calls, strict=True))


def _fill(raw: sqlite3.Connection, model: Entry, number: int, *, behind: int) -> None:
    """Copy an entry that many times, each a moment later than the last. `behind` says how many
    moments before now they begin.
    """
    apart = round(_APART_S * 1e6)
    raw.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1), "
        "last(revision) AS (SELECT max(revision) FROM journal) "
        "INSERT INTO journal SELECT last.revision + i, 'default', ?3 + i * ?2, ?4, ?5, ?6, ?7 "
        "FROM n, last",
        (
            number,
            apart,
            round(model.at.timestamp() * 1e6) - behind * apart,
            model.actor,
            model.kind,
            model.subject,
            to_json(model.data),
        ),
    )
