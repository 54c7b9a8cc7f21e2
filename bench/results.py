"""The figures of a run as JSON, so that two runs can be compared."""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.measure import Series, Spread
from bench.report import Row, Run, Verdict

FORMAT = 1


def write(run: Run, path: Path) -> None:
    """Write all figures of a run: every round of every contender, and the verdicts."""
    path.write_text(json.dumps(table(run), indent=1) + "\n")


def read(path: Path) -> dict[str, Any]:
    """Read what `write` wrote. Raises ValueError for another format."""
    found: dict[str, Any] = json.loads(path.read_text())
    if found.get("format") != FORMAT:
        raise ValueError(f"{path} is not a table of `python -m bench --table`")
    return found


def table(run: Run) -> dict[str, Any]:
    """A run as what JSON can say."""
    return {
        "format": FORMAT,
        "facts": dict(run.facts),
        "took_s": dict(run.took_s),
        "total_s": run.total_s,
        "failures": [dataclasses.asdict(failure) for failure in run.failures],
        "rows": [_row(row) for row in run.rows],
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "title": row.full_title,
        "kind": row.kind,
        "unit": row.scale.unit if row.scale else None,
        "series": [_series(row, one) for one in row.series],
        "verdicts": [_verdict(verdict) for verdict in row.verdicts],
        "absent": list(row.absent),
    }


def _series(row: Row, series: Series) -> dict[str, Any]:
    contender = series.contender
    return {
        "name": contender.name,
        "size": contender.size,
        "durability": contender.durability,
        "limit": contender.limit,
        "figure": _finite(series.spread(row.figure).median),
        "samples": [_without_nan(dataclasses.asdict(sample)) for sample in series.samples],
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "what": verdict.what,
        "variant": verdict.variant,
        "against": verdict.against,
        "target": verdict.target,
        "reached": verdict.reached,
        "missed": verdict.missed,
        **_spread(verdict.figure),
    }


def _spread(figure: Spread) -> dict[str, float | None]:
    return {name: _finite(value) for name, value in figure._asdict().items()}


def _without_nan(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _finite(value) for name, value in figures.items()}


def _finite(value: float) -> float | None:
    """JSON has no other numbers."""
    return value if math.isfinite(value) else None
