"""The page of the benchmark begins with what a reader wants to know: which targets were missed."""

import math
from pathlib import Path

import pytest

from bench import results
from bench.compare import compare
from bench.measure import Contender, Failure, Lab, Sample, Series, Spread
from bench.report import EQUAL, Row, Run, Scale, Verdict, growth_verdict, write

PAIR = Row(
    name="pair",
    title="Lock pair",
    says="One process takes a lock and releases it.",
    series=[],
    verdicts=[
        Verdict("time, Holdfast to flock", "at most 1", Spread(3.0, 2.0, 4.0), False, "Slow."),
        Verdict("throughput, Holdfast to flock", "", Spread(0.5, 0.4, 0.6), None),
    ],
)
LOCK = Row(
    name="lock",
    title="Router lock",
    says="One process locks a router.",
    series=[],
    verdicts=[
        Verdict("ms to lock", "under 1", Spread(0.1, 0.1, 0.1), True, variant=store)
        for store in ("memory", "sqlite")
    ],
)
COSTS = Scale("hosts", "ms, less is better", lambda sample: sample.p50_s * 1000)


def sample(took_s: float) -> Sample:
    return Sample(rate=1 / took_s, p50_s=took_s, worst_s=took_s, share=1.0)


def never(_: Path) -> Sample:
    raise AssertionError("nothing is measured here")


def grown(name: str, *took_s: float) -> list[Series]:
    """A contender at 1, 10, 100 and more."""
    return [
        Series(Contender(name, "", never, size=10**at), (sample(took), sample(2 * took)))
        for at, took in enumerate(took_s)
    ]


def run(*rows: Row, failures: tuple[Failure, ...] = ()) -> Run:
    return Run(rows, {"Holdfast": "1.2"}, {"locks": 3.0}, 3.0, failures, rounds=3, most_rounds=5)


def page_of(of: Run, folder: Path) -> str:
    page = folder / "benchmarks.md"
    write(of, page=page, folder=folder / "pictures")
    return page.read_text()


def test_the_verdicts_come_first_and_the_details_in_an_appendix(tmp_path: Path) -> None:
    text = page_of(run(PAIR, LOCK), tmp_path)
    assert "**2 of 3 targets are reached** (Holdfast 1.2," in text
    before, _, appendix = text.partition("## Appendix")
    assert "| Lock pair | time, Holdfast to flock | 3 | at most 1 | **MISSED** |" in before
    assert "- *Lock pair, time, Holdfast to flock*: Slow." in before
    assert "| Router lock | ms to lock | memory: 0.1, sqlite: 0.1 | under 1 | reached |" in before
    assert "throughput, Holdfast to flock" not in before
    assert "throughput, Holdfast to flock: 0.5 (0.4 to 0.6)" in appendix


def test_peers_of_equal_promise_come_first(tmp_path: Path) -> None:
    fair = Verdict("time", "at most 2", Spread(1.0, 1.0, 1.0), True, against=EQUAL)
    last = Row(name="fair", title="Fair lock", says="", series=[], verdicts=[fair])
    text = page_of(run(PAIR, last), tmp_path)
    assert text.index("| Fair lock |") < text.index("| Lock pair |")


def test_a_row_that_fails_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    lab = Lab(tmp_path, rounds=1, quick=True)
    rows = lab.rows({"One": lambda: PAIR, "Two": lambda: [][0], "Three": lambda: LOCK})
    assert rows == [PAIR, LOCK]
    [failure] = lab.failures
    assert "IndexError" in failure.error
    assert "- Two: IndexError" in page_of(run(*rows, failures=(failure,)), tmp_path)


def test_growth_is_the_cost_at_the_largest_size_by_the_cost_at_a_smaller_one(
    tmp_path: Path,
) -> None:
    series = grown("Holdfast", 0.001, 0.002, 0.003)
    flat = growth_verdict(COSTS, series, "Holdfast", since=10, at_most=1.6)
    steep = growth_verdict(COSTS, series, "Holdfast", since=1, at_most=1.6)
    assert flat.figure.median == pytest.approx(1.5)
    assert (flat.reached, steep.reached) == (True, False)
    row = Row(
        name="hosts",
        title="Hosts",
        says="",
        series=series,
        verdicts=[flat],
        kind="scale",
        scale=COSTS,
    )
    assert "| 100 | 4.5 (3 to 6) |" in page_of(run(row), tmp_path)
    assert "<svg" in (tmp_path / "pictures" / "bench-hosts.svg").read_text()


@pytest.mark.parametrize(
    ("took_s", "rounds"), [((1.0, 1.1, 1.0), 3), ((1.0, 1.1, 1.3, 1.0, 1.0), 5)]
)
def test_a_figure_that_spreads_widely_gets_more_rounds(
    tmp_path: Path, took_s: tuple[float, ...], rounds: int
) -> None:
    each = iter(took_s)
    [series] = Lab(tmp_path, rounds=3, most_rounds=5, quick=True).interleave(
        [Contender("Holdfast", "", lambda _: sample(next(each)))],
        judged=lambda found: [found[0].spread(lambda one: one.p50_s)],
        shared=tmp_path,
    )
    assert len(series.samples) == rounds


def test_a_table_gives_the_same_page_and_the_change_between_runs(tmp_path: Path) -> None:
    row = Row(
        name="hosts",
        title="Hosts",
        says="",
        series=grown("Holdfast", 0.001, 0.002),
        verdicts=[Verdict("time", "at most 1", Spread(2.0, 1.0, math.inf), False, "Slow.")],
        kind="scale",
        scale=COSTS,
    )
    before, table = run(row, PAIR), tmp_path / "table.json"
    results.write(before, table)
    again = results.read(table)
    assert page_of(again, tmp_path) == page_of(before, tmp_path)
    lines = list(compare(again, run(PAIR), everything=False))
    assert "| Lock pair | time, Holdfast to flock | 3 | 3 | x 1 | at most 1 | MISSED |" in lines
    assert "| Hosts | time | 2 |  |  | at most 1 | not measured |" in lines
