"""Durable changes by one process and by eight."""

from functools import partial

from bench import work
from bench.measure import Contender, Lab, Series, ratio, took_s
from bench.report import EQUAL, LESS, Row, Verdict

NAME = "durable"


def measure(lab: Lab) -> list[Row]:
    return lab.rows(
        {
            "Durable change, 1 process": partial(_alone, lab),
            "Durable change, 8 processes": partial(_crowd, lab),
            "Durable change, just opened": partial(_new, lab),
        }
    )


def contenders(lab: Lab, processes: int, seconds: float) -> list[Contender]:
    """Holdfast, and SQLite with the same rows, with a number of writers."""
    race = partial(lab.race, processes=processes, seconds=seconds)
    return [
        Contender("Holdfast", work.FULL, race(prepare=work.prepare_store, cast=work.DurableChange)),
        Contender(
            "raw SQLite, FULL",
            work.FULL,
            race(prepare=work.prepare_raw, cast=work.RawDurableChange),
        ),
    ]


def _alone(lab: Lab) -> Row:
    series = _series(lab, 1)
    took = ratio(series[0], series[1], took_s)
    return Row(
        name="durable-1",
        title="Durable change",
        variant="1 process",
        says=_SAYS,
        series=series,
        verdicts=[
            Verdict(
                "time, Holdfast to raw SQLite",
                "at most 1.5",
                took,
                took.median <= 1.5,
                _BESIDE,
                against=EQUAL,
            )
        ],
    )


_BESIDE = (
    "Both sides wait for the sync. Holdfast adds the checks, the encoding and the gate, which count "
    "where a sync is as short as here."
)


def _crowd(lab: Lab) -> Row:
    series = _series(lab, 8)
    rate = ratio(series[0], series[1], lambda sample: sample.rate)
    wait = ratio(series[0], series[1], lambda sample: sample.worst_s)
    return Row(
        name="durable-8",
        title="Durable change",
        variant="8 processes",
        says="With eight processes raw SQLite is "
        "fast because it is unfair: one process does nearly all the work, while the "
        "others wait for seconds. The first limit is the cost of turns alone: the raw "
        "statements, in turns by a bare flock, with one fdatasync each. With turns, every "
        "writer finds its pages changed by another and reads them again, and the syncs of "
        "some slow down the writes of the next.",
        series=series,
        verdicts=[
            Verdict(
                "throughput, Holdfast to raw SQLite",
                "at least 1.5 (aim 2)",
                rate,
                rate.median >= 1.5,
                _UNFAIR,
                against=LESS,
            ),
            Verdict(
                "worst wait, Holdfast to raw SQLite",
                "at most 0.1",
                wait,
                wait.median <= 0.1,
                against=LESS,
            ),
        ],
    )


_UNFAIR = (
    "Raw SQLite is fast here because one process keeps the others out. The limit *raw SQLite in "
    "turns by flock* shows what fair turns cost without Holdfast."
)


def _new(lab: Lab) -> Row:
    race = partial(lab.race, seconds=0.8, warm_up_s=0.0)
    series = lab.interleave(
        [
            Contender(
                "Holdfast", work.FULL, race(prepare=work.prepare_store, cast=work.DurableChangeNew)
            ),
            Contender(
                "raw SQLite, FULL",
                work.FULL,
                race(prepare=work.prepare_raw, cast=work.RawDurableChangeNew),
            ),
        ]
    )
    took = ratio(series[0], series[1], took_s)
    return Row(
        name="durable-new",
        title="Durable change",
        variant="1 process, just opened",
        says="Just opened: the first 0.8 s on a store that nobody had open before. Its log is a new file that grows, and syncing a growing file takes "
        "longer.",
        series=series,
        verdicts=[Verdict("time, Holdfast to raw SQLite", "", took, None)],
    )


def _series(lab: Lab, processes: int) -> list[Series]:
    seconds = 1.2
    limit = lab.race(
        processes=processes, seconds=seconds, prepare=work.prepare_file, cast=work.Append
    )
    in_turn = lab.race(
        processes=processes, seconds=seconds, prepare=work.prepare_raw, cast=work.RawInTurn
    )
    return lab.interleave(
        [
            *contenders(lab, processes, seconds),
            Contender("raw SQLite in turns by flock", work.FULL, in_turn, limit=True),
            Contender("append 4 KB and fdatasync", work.FULL, limit, limit=True),
        ],
        judged=lambda series: [ratio(series[0], series[1], lambda sample: sample.rate)],
    )


_SAYS = (
    "One transaction writes a job (a record with one index) and its journal entry, "
    "and returns when both survive a power loss. The raw side is the standard "
    "library's sqlite3 on a database made with Holdfast's own statements: WAL, "
    "synchronous=FULL, BEGIN IMMEDIATE with a busy timeout of 10 s, the same two "
    "rows. It checks, encodes and wakes nothing. Both have been in use for a while, "
    "so that their logs have grown. The limit writes 4 KB into existing blocks and "
    "syncs them."
)
