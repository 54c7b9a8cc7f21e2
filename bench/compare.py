"""`python -m bench.compare BEFORE AFTER [--all]`: the figures of two runs side by side, as a table in
Markdown. The runs are files of `python -m bench --table FILE`.

Shows the verdicts that have a target; with `--all` also those without, and what each contender of
Holdfast measured.
"""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import results
from bench.pictures import number

_WORDS = {True: "reached", False: "MISSED", None: ""}


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--all", action="store_true", help="also figures without a target")
    options = parser.parse_args()
    before, after = results.read(options.before), results.read(options.after)
    print("\n".join(compare(before, after, everything=options.all)))


def compare(before: dict[str, Any], after: dict[str, Any], *, everything: bool) -> Iterator[str]:
    """The lines of the table."""
    yield "| work | figure | before | after | change | target | |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    older = {row["name"]: row for row in before["rows"]}
    newer = {row["name"]: row for row in after["rows"]}
    for name in [*newer, *(name for name in older if name not in newer)]:
        old, new = older.get(name, {}), newer.get(name, {})
        title = (new or old)["title"]
        for what, then, now in _pairs(_verdicts(old), _verdicts(new)):
            shown = now or then
            if shown["target"] or everything:
                word = _WORDS[now["reached"]] if now else "not measured"
                yield _line(
                    title,
                    what,
                    _value(then, "median"),
                    _value(now, "median"),
                    shown["target"],
                    word,
                )
        if everything:
            for what, then, now in _pairs(_contenders(old), _contenders(new)):
                unit = _unit(new or old)
                yield _line(
                    title, f"{what}, {unit}", _value(then, "figure"), _value(now, "figure"), "", ""
                )


def _verdicts(row: dict[str, Any]) -> dict[str, Any]:
    """By what they are about: the name of the fastest peer, in brackets, may differ."""
    return {
        re.sub(r" \([^)]*\)", "", one["what"])
        + (f", {one['variant']}" if one["variant"] else ""): one
        for one in row.get("verdicts", [])
    }


def _contenders(row: dict[str, Any]) -> dict[str, Any]:
    return {
        one["name"] + (f", {one['size']:,}" if one["size"] is not None else ""): one
        for one in row.get("series", [])
        if "holdfast" in one["name"].lower()
    }


def _pairs(old: dict[str, Any], new: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for what in [*new, *(what for what in old if what not in new)]:
        yield what, old.get(what), new.get(what)


def _unit(row: dict[str, Any]) -> str:
    return row["unit"] or ("ms" if row["kind"] == "time" else "a second")


def _value(found: dict[str, Any] | None, name: str) -> float | None:
    return found[name] if found else None


def _line(
    title: str, what: str, then: float | None, now: float | None, target: str, word: str
) -> str:
    change = f"x {number(now / then)}" if then and now else ""
    cells = [title, what, _shown(then), _shown(now), change, target, word]
    return "| " + " | ".join(cells) + " |"


def _shown(value: float | None) -> str:
    return "-" if value is None else number(value)


if __name__ == "__main__":
    main()
