"""Reading a record by its key."""

from bench import work
from bench.measure import Contender, Lab, ratio, took_s
from bench.report import LESS, Row, Verdict

NAME = "read"


def measure(lab: Lab) -> list[Row]:
    ours = lab.race(prepare=work.prepare_filled, cast=work.Read, seconds=0.8)
    raw = lab.race(prepare=work.prepare_raw_filled, cast=work.RawRead, seconds=0.8)
    series = lab.interleave(
        [Contender("Holdfast", "reads", ours), Contender("raw SQLite", "reads", raw)]
    )
    took = ratio(series[0], series[1], took_s)
    return [
        Row(
            name="read",
            title="Read by key",
            says="`store.get` returns a typed, checked record. The raw side is SELECT and fetchone "
            "on one long-lived connection, which returns bytes. A thousand jobs.",
            series=series,
            verdicts=[
                Verdict(
                    "time, Holdfast to raw SQLite",
                    "at most 3",
                    took,
                    took.median <= 3,
                    against=LESS,
                )
            ],
        )
    ]
