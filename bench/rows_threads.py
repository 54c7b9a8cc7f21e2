"""Threads of one process: do they share syncs?"""

from functools import partial

from bench import work
from bench.measure import Contender, Lab, ratio
from bench.report import Row, Verdict

NAME = "threads"


def measure(lab: Lab) -> list[Row]:
    race = partial(lab.race, prepare=work.prepare_store, cast=work.DurableChange, seconds=1.0)
    series = lab.interleave(
        [
            Contender("Holdfast, 8 threads", work.FULL, race(threads=8)),
            Contender("Holdfast, 1 thread", work.FULL, race(threads=1)),
        ],
        judged=lambda series: [ratio(series[0], series[1], lambda sample: sample.rate)],
    )
    rate = ratio(series[0], series[1], lambda sample: sample.rate)
    return [
        Row(
            name="threads",
            title="Threads of one process",
            says=(
                "Durable changes by eight threads of one process on one connection object, "
                "against one thread."
            ),
            series=series,
            verdicts=[
                Verdict(
                    "throughput, 8 threads to 1",
                    "at least 1.5",
                    rate,
                    rate.median >= 1.5,
                    "Threads of one interpreter run one at a time: they share what waits for the "
                    "disk, and not the Python code of a change.",
                )
            ],
        )
    ]
