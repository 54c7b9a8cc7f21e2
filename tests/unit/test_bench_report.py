"""The page of the benchmark begins with what a reader wants to know: which targets were missed."""

from pathlib import Path

from bench.measure import Spread
from bench.report import Row, Verdict, write

ROWS = [
    Row(
        name="pair",
        title="Lock pair",
        says="One process takes a lock and releases it.",
        series=[],
        verdicts=[
            Verdict("time, Holdfast to flock", "at most 1", Spread(3.0, 2.0, 4.0), False, "Slow."),
            Verdict("throughput, Holdfast to flock", "", Spread(0.5, 0.4, 0.6), None),
        ],
    ),
    Row(
        name="lock",
        title="Router lock",
        says="One process locks a router.",
        series=[],
        verdicts=[
            Verdict(f"ms to lock, Holdfast, {store}", "under 1", Spread(0.1, 0.1, 0.1), True)
            for store in ("memory", "sqlite")
        ],
    ),
]


def test_the_verdicts_come_first_and_the_details_in_an_appendix(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    write(ROWS, {"Holdfast": "1.2"}, rounds=5, page=page, folder=tmp_path / "pictures")
    text = page.read_text()
    assert "**2 of 3 targets are reached** (Holdfast 1.2," in text
    before, _, appendix = text.partition("## Appendix")
    assert "| Lock pair | time, Holdfast to flock | 3 | at most 1 | Slow. |" in before
    assert "| Router lock | ms to lock | memory 0.1, sqlite 0.1 | under 1 |" in before
    assert before.index("## Missed targets") < before.index("## Reached targets")
    assert "throughput, Holdfast to flock" not in before.partition("## Missed targets")[2]
    assert "- throughput, Holdfast to flock: **0.5 (0.4 to 0.6)**" in appendix
