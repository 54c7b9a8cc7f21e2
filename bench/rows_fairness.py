"""Sixteen writers: does each get its share?"""

from bench.measure import Lab, ratio
from bench.report import Row, Verdict
from bench.rows_durable import contenders

NAME = "fairness"

_WORST_MS = 250
_TURNS = "Turns are in the order of arrival; a process that the scheduler leaves out arrives later."


def measure(lab: Lab) -> list[Row]:
    rounds = min(lab.rounds, 3)
    series = lab.interleave(contenders(lab, 16, 2.0), rounds=rounds)
    ours = series[0]
    share = ours.spread(lambda sample: sample.share)
    worst = ours.spread(lambda sample: sample.worst_s * 1000)
    wait = ratio(ours, series[1], lambda sample: sample.worst_s)
    return [
        Row(
            name="fairness",
            title="Fairness, 16 processes",
            says="Sixteen processes make durable changes for 2 s. The worst "
            "wait is the longest of any change by any process.",
            series=series,
            verdicts=[
                Verdict("share, Holdfast", "over 0.8", share, share.median > 0.8, _TURNS),
                Verdict(
                    "worst wait in ms",
                    f"at most {_WORST_MS}",
                    worst,
                    worst.high <= _WORST_MS,
                    "A single slow sync of the disk makes all of them wait.",
                ),
                Verdict("worst wait, Holdfast to raw SQLite", "", wait, None),
            ],
        )
    ]
