"""Volatile changes, of which locks and heartbeats consist."""

from functools import partial

from bench import work
from bench.measure import Contender, Lab, ratio, took_s
from bench.report import Row, Verdict

NAME = "volatile"


def measure(lab: Lab) -> list[Row]:
    race = partial(lab.race, seconds=0.6)
    raw = partial(race, prepare=work.prepare_raw_volatile)
    ours = partial(race, prepare=work.prepare_store)
    pair = lab.interleave(
        [
            Contender("Holdfast, put_new + delete_if", work.KILL, ours(cast=work.VolatilePair)),
            Contender("raw SQLite, INSERT + DELETE", work.KILL, raw(cast=work.RawVolatilePair)),
        ]
    )
    single = lab.interleave(
        [
            Contender("Holdfast, transact with a put", work.KILL, ours(cast=work.VolatileChange)),
            Contender("raw SQLite, one upsert", work.KILL, raw(cast=work.RawVolatileChange)),
        ]
    )
    return [
        Row(
            name="volatile-pair",
            title="Volatile pair",
            says="Two transactions, as for a lock: put a record that must be new, and delete it by "
            "its token. Holdfast also takes turns at the gate and gives a token that only "
            "grows. The raw side has synchronous=OFF and no counter.",
            series=pair,
            verdicts=[
                Verdict("time, Holdfast to raw SQLite", "", ratio(pair[0], pair[1], took_s), None)
            ],
        ),
        Row(
            name="volatile-change",
            title="Volatile change",
            says="A general transaction that puts one volatile record, against one upsert.",
            series=single,
            verdicts=[
                Verdict(
                    "time, Holdfast to raw SQLite", "", ratio(single[0], single[1], took_s), None
                )
            ],
        ),
    ]
