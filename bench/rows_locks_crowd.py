"""Contended locks: who gets them, how soon, and how long they are idle in between."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench import locking, turns
from bench.locking import FASTENERS, FILELOCK, FLOCK, HOLDFAST, Kind
from bench.measure import Contender, Lab, Sample, Series, Spread, find, ratio
from bench.report import Row, Verdict
from bench.rows_locks import COLUMN

NAME = "locks-crowd"

_CROWDS = (2, 8, 32, 100)
_SORTED = "flock, five files sorted"


def measure(lab: Lab) -> list[Row]:
    kinds, absent = locking.take_part(locking.kinds(HOLDFAST, FILELOCK, FASTENERS, FLOCK), {})
    return [
        *(_crowd(lab, kinds, absent, processes) for processes in _CROWDS),
        _handed(lab, kinds, absent),
        _fifty(lab),
    ]


def _crowd(lab: Lab, kinds: Sequence[Kind], absent: Sequence[str], processes: int) -> Row:
    most = processes == max(_CROWDS)
    race = partial(
        _race,
        lab,
        cast=turns.OneLock,
        names=turns.ONE,
        processes=processes,
        seconds=4.0 if most else 0.6,
    )
    series = lab.interleave(
        _contenders(kinds, race), rounds=lab.rounds if most else min(lab.rounds, 3)
    )
    return Row(
        name=f"locks-crowd-{processes}",
        title=f"One lock, {processes} processes",
        says=_CROWD_SAYS
        if most
        else f"The row with {max(_CROWDS)} processes says what is done. {len(series[0].samples)} "
        "rounds.",
        series=series,
        verdicts=_crowd_verdicts(series, judged=most),
        column=COLUMN,
        logarithmic=True,
        absent=absent,
    )


_CROWD_SAYS = (
    "All processes take the lock, do next to nothing, release it, and ask again at "
    "once. A hand-over is the time from just before one process's release to just "
    "after another's entry; a process that takes the lock from itself does not count. "
    "The libraries' hand-overs are short here because a process that asks again at "
    "once keeps the lock busy and the others out: only those count that came just "
    "between two of its turns. The row *Lock handed over* shows how long a lock lies "
    "idle when its holder does not ask again. The first two seconds are not counted, "
    "because it takes that long until all processes have had a turn."
)


def _crowd_verdicts(series: Sequence[Series], *, judged: bool) -> list[Verdict]:
    ours, theirs = find(series, HOLDFAST), find(series, FILELOCK)
    if ours is None:
        return []
    share = ours.spread(lambda sample: sample.share)
    verdicts = [
        Verdict(
            "share, least to most",
            *_judged(judged, "over 0.9", share, share.median > 0.9),
            _FEW_TURNS,
        )
    ]
    if theirs is None:
        return verdicts
    rate = ratio(ours, theirs, lambda sample: sample.rate)
    wait = ratio(ours, theirs, lambda sample: sample.worst_s)
    handed = ratio(ours, theirs, lambda sample: sample.handed_s)
    return [
        *verdicts,
        Verdict(
            "throughput, Holdfast to filelock",
            *_judged(judged, "over 0.6 (aim 1)", rate, rate.median > 0.6),
            _WOKEN,
        ),
        Verdict(
            "worst wait, Holdfast to filelock",
            *_judged(judged, "under 0.5", wait, wait.median < 0.5),
            "It follows from the throughput.",
        ),
        Verdict("hand-over, Holdfast to filelock", "", handed, None),
    ]


_FEW_TURNS = (
    "In the time that is measured each of them has some thirty turns, so that one more or less is "
    "a thirtieth."
)
_WOKEN = (
    "With fair turns the lock goes to another process each time, which must be woken. "
    "A process of filelock mostly takes the lock from itself, as its share shows. A "
    "turn is two transactions of nine statements, of about 0.13 ms of processor time "
    "each; in a crowd two to three times that, because the processes drive each other "
    "out of the caches of two cores."
)


def _judged(
    judged: bool, target: str, figure: Spread, reached: bool
) -> tuple[str, Spread, bool | None]:
    """The target of a verdict, if it belongs to this row."""
    return (target, figure, reached) if judged else ("", figure, None)


def _handed(lab: Lab, kinds: Sequence[Kind], absent: Sequence[str]) -> Row:
    race = partial(_race, lab, cast=turns.ByTurns, names=turns.ONE, processes=2, seconds=1.5)
    contenders = _contenders(kinds, lambda kind: partial(_as_time, race(kind)))
    series = lab.interleave(contenders, rounds=min(lab.rounds, 3))
    ours, theirs = find(series, HOLDFAST), find(series, FILELOCK)
    verdicts = []
    if ours is not None and theirs is not None:
        handed = ratio(ours, theirs, lambda sample: sample.p50_s)
        verdicts.append(
            Verdict(
                "hand-over, Holdfast to filelock",
                "at most 0.02",
                handed,
                handed.median <= 0.02,
                _COLD,
            )
        )
    return Row(
        name="locks-handed",
        title="Lock handed over",
        says="One process holds the lock for 10 to 60 ms, so that a poll may come at any "
        "moment, while another waits for it. Then they change places. The time is from "
        "just before the release to just after the other's entry. "
        f"{len(series[0].samples)} rounds.",
        series=series,
        verdicts=verdicts,
        kind="time",
        column=COLUMN,
        logarithmic=True,
        absent=absent,
    )


_COLD = (
    "After tens of milliseconds of sleep the caches are cold: a release that takes "
    "0.13 ms when warm takes several times that. Then the other process must be "
    "scheduled, look, and return to its caller. A bare flock shows what waking alone "
    "costs."
)


def _fifty(lab: Lab) -> Row:
    kinds, absent = locking.take_part(locking.kinds(HOLDFAST, FLOCK), {})
    # Here it is a peer and not a limit: a job that needs several locks today takes them like this.
    kinds = [
        replace(kind, name=_SORTED, limit=False) if kind.name == FLOCK else kind for kind in kinds
    ]
    race = partial(_race, lab, cast=turns.FiveOfFifty, names=turns.FIFTY, processes=20, seconds=3.0)
    series = lab.interleave(_contenders(kinds, race))
    ours, theirs = find(series, HOLDFAST), find(series, _SORTED)
    verdicts = []
    if ours is not None and theirs is not None:
        rate = ratio(ours, theirs, lambda sample: sample.rate)
        wait = ratio(ours, theirs, lambda sample: sample.worst_s)
        verdicts = [
            Verdict("throughput, Holdfast to sorted flock", "over 1", rate, rate.median > 1),
            Verdict(
                "worst wait, Holdfast to sorted flock", "at most 0.33", wait, wait.median <= 1 / 3
            ),
        ]
    return Row(
        name="locks-fifty",
        title="Five of fifty locks at once, 20 processes",
        says="Twenty processes take five random locks of fifty, hold them for 20 ms and "
        "release them, for 3 s. Holdfast asks for all five at once and holds nothing "
        "while it waits. flock takes five files one after the other, sorted by name to "
        "avoid deadlocks, and holds the first ones while it waits for the next. Both use "
        "the same sets.",
        series=series,
        verdicts=verdicts,
        column=COLUMN,
        absent=absent,
    )


def _race(
    lab: Lab,
    kind: Kind,
    *,
    cast: type[turns.OneLock],
    names: Sequence[str],
    processes: int,
    seconds: float,
) -> Callable[[Path], Sample]:
    return lab.race(
        prepare=partial(turns.prepare, opens=kind.opens, names=names),
        cast=partial(cast, opens=kind.opens),
        seconds=seconds,
        # A hundred processes on few cores need a while until each has had its first turn.
        warm_up_s=0.2 if processes < 100 else 2.0,
        processes=processes,
        log=turns.TurnLog,
    )


def _contenders(
    kinds: Sequence[Kind], race: Callable[[Kind], Callable[[Path], Sample]]
) -> list[Contender]:
    return [Contender(kind.name, kind.killed, race(kind), kind.limit) for kind in kinds]


def _as_time(race: Callable[[Path], Sample], folder: Path) -> Sample:
    """A round as its hand-overs."""
    sample = race(folder)
    return Sample(
        rate=sample.rate, p50_s=sample.handed_s, worst_s=sample.handed_worst_s, share=sample.share
    )
