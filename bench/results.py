"""The figures of a run as JSON, so that two runs can be compared, and a page written again."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.measure import Contender, Failure, Sample, Series, Spread
from bench.report import Row, Run, Scale, Verdict

FORMAT = 1


def write(run: Run, path: Path) -> None:
    """Write all figures of a run: every round of every contender, and the verdicts."""
    path.write_text(json.dumps(_table(run), indent=1) + "\n")


def read(path: Path) -> Run:
    """Read what `write` wrote. Raises ValueError for another format."""
    found: dict[str, Any] = json.loads(path.read_text())
    if found.pop("format", None) != FORMAT:
        raise ValueError(f"{path} is not a table of `python -m bench --table`")
    found["failures"] = [Failure(**one) for one in found["failures"]]
    found["rows"] = [_read_row(one) for one in found["rows"]]
    return Run(**found)


def _table(run: Run) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "facts": dict(run.facts),
        "took_s": dict(run.took_s),
        "total_s": run.total_s,
        "rounds": run.rounds,
        "most_rounds": run.most_rounds,
        "failures": [asdict(failure) for failure in run.failures],
        "rows": [_row(row) for row in run.rows],
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        **{name: value for name, value in vars(row).items() if isinstance(value, str | int)},
        "size": row.size,
        "absent": list(row.absent),
        "scale": {"axis": row.scale.axis, "unit": row.scale.unit} if row.scale else None,
        "verdicts": [
            _finite(vars(one)) | {"figure": _finite(one.figure._asdict())} for one in row.verdicts
        ],
        "series": [_series(row, one) for one in row.series],
    }


def _series(row: Row, series: Series) -> dict[str, Any]:
    contender = series.contender
    return {
        "name": contender.name,
        "durability": contender.durability,
        "limit": contender.limit,
        "size": contender.size,
        # In a row of kind `scale` the figure is kept as the sample's value.
        "samples": [
            _finite({**asdict(sample), **({"value": row.figure(sample)} if row.scale else {})})
            for sample in series.samples
        ],
    }


def _read_row(found: dict[str, Any]) -> Row:
    if found["scale"]:
        found["scale"] = Scale(**found["scale"], of=lambda sample: sample.value)
    found["verdicts"] = [
        Verdict(**{**one, "figure": Spread(**_float(one["figure"], math.inf))})
        for one in found["verdicts"]
    ]
    found["series"] = [_read_series(one) for one in found["series"]]
    return Row(**found)


def _read_series(found: dict[str, Any]) -> Series:
    samples = tuple(Sample(**_float(one, math.nan)) for one in found.pop("samples"))
    return Series(Contender(run=_not_again, **found), samples)


def _not_again(_: Path) -> Sample:
    raise NotImplementedError("a contender that was read from a table cannot run")


def _finite(figures: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no other numbers."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in figures.items()
    }


def _float(figures: Mapping[str, Any], missing: float) -> dict[str, Any]:
    return {name: missing if value is None else value for name, value in figures.items()}
