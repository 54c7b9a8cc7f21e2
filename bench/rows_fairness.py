"""Sixteen writers: does each get its share?"""

from bench.measure import Lab, ratio
from bench.report import Row, Verdict
from bench.rows_durable import contenders

NAME = "fairness"

_WORST_MS = 250


def measure(lab: Lab) -> list[Row]:
    rounds = min(lab.rounds, 3)
    series = lab.interleave(contenders(lab, 16, 3.0), rounds=rounds)
    ours = series[0]
    share = ours.spread(lambda sample: sample.share)
    worst = ours.spread(lambda sample: sample.worst_s * 1000)
    wait = ratio(ours, series[1], lambda sample: sample.worst_s)
    return [
        Row(
            name="fairness",
            title="Fairness, 16 processes",
            says="Sixteen processes make durable changes for 3 s. The worst "
            "wait is the longest of any change by any process.",
            series=series,
            verdicts=[
                Verdict("share, least to most", "over 0.8", share, share.median > 0.8),
                Verdict("worst wait in ms", f"at most {_WORST_MS}", worst, worst.high <= _WORST_MS),
                Verdict("worst wait, Holdfast to raw SQLite", "", wait, None),
            ],
        )
    ]
