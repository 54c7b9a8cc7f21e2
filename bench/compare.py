"""`python -m bench.compare BEFORE AFTER [--all]`: the figures of two runs side by side, as a table in
Markdown. The runs are files of `python -m bench --table FILE`.

Shows the figures that have a target; with `--all` also those without, and what each contender of
Holdfast measured.
"""

import argparse
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from bench import results
from bench.measure import Series
from bench.pictures import number
from bench.report import Row, Run, Verdict

T = TypeVar("T")


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--all", action="store_true", help="also figures without a target")
    options = parser.parse_args()
    before, after = results.read(options.before), results.read(options.after)
    print("\n".join(compare(before, after, everything=options.all)))


def compare(before: Run, after: Run, *, everything: bool) -> Iterator[str]:
    """The lines of the table."""
    yield "| work | figure | before | after | change | target | |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for _, then, now in _pairs(_rows(before), _rows(after)):
        row = now or then
        assert row is not None
        for what, old, new in _pairs(_verdicts(then), _verdicts(now)):
            shown = new or old
            assert shown is not None
            if shown.target or everything:
                word = new.word if new else "not measured"
                yield _line(
                    row.full_title,
                    what,
                    old.figure.median if old else math.nan,
                    new.figure.median if new else math.nan,
                    shown.target,
                    word if shown.target else "",
                )
        if everything:
            unit = row.scale.unit if row.scale else "ms" if row.kind == "time" else "a second"
            for what, one, other in _pairs(_contenders(then), _contenders(now)):
                yield _line(
                    row.full_title,
                    f"{what}, {unit.partition(',')[0]}",
                    one.spread(row.figure).median if one else math.nan,
                    other.spread(row.figure).median if other else math.nan,
                    "",
                    "",
                )


def _rows(run: Run) -> dict[str, Row]:
    return {row.name: row for row in run.rows}


def _verdicts(row: Row | None) -> dict[str, Verdict]:
    """By what they are about: the name of the fastest peer, in brackets, may differ."""
    found = {}
    for one in row.verdicts if row else ():
        what = f"{one.what}, {one.variant}" if one.variant else one.what
        found[re.sub(r",? \([^)]*\)", "", what)] = one
    return found


def _contenders(row: Row | None) -> dict[str, Series]:
    found = {}
    for one in row.series if row else ():
        name, size = one.contender.name, one.contender.size
        if "holdfast" in name.lower():
            found[name if size is None else f"{name}, {size:,}"] = one
    return found


def _pairs(old: Mapping[str, T], new: Mapping[str, T]) -> Iterator[tuple[str, T | None, T | None]]:
    for what in [*new, *(what for what in old if what not in new)]:
        yield what, old.get(what), new.get(what)


def _line(title: str, what: str, then: float, now: float, target: str, word: str) -> str:
    change = now / then if then else math.nan
    cells = [title, what, _shown(then), _shown(now), _shown(change, "x "), target, word]
    return "| " + " | ".join(cells) + " |"


def _shown(value: float, before: str = "") -> str:
    return "" if math.isnan(value) else before + number(value)


if __name__ == "__main__":
    main()
