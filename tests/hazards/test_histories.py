"""Real processes on one store, killed and stopped at random: what they saw must be explained by
some order of their calls.

HOLDFAST_HISTORY_S makes a crowd last longer than in the suite, and HOLDFAST_HISTORY_SEED chooses
another.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.kernel.limits import WAIT_RECHECK_S
from proof.crowd import crowd
from proof.crowd.calls import history_of
from proof.crowd.plan import Crowd
from proof.histories import (
    ClaimSpecification,
    CountSpecification,
    FifoSpecification,
    LockSpecification,
    Report,
    Specification,
    check,
)
from proof.histories.search import Undecided

pytestmark = pytest.mark.prove

SEED = int(os.environ.get("HOLDFAST_HISTORY_SEED", "20271"))
LASTS_S = float(os.environ.get("HOLDFAST_HISTORY_S", "2"))
TRIES = 8
"""How many crowds may miss a planted bug before the next meets it."""
LATE_S = WAIT_RECHECK_S / 2
"""A wake-up that is lost costs up to WAIT_RECHECK_S; one that comes costs no more than the machine
is busy.
"""


def specification(kind: str, *, embedded: bool) -> Specification[Any]:
    if kind in ("locks", "turns"):
        return LockSpecification()
    if kind == "claims":
        # A database latches row by row, so that a claim passes over what another is just taking.
        return ClaimSpecification(passes=not embedded)
    return CountSpecification() if kind == "counts" else FifoSpecification()


LEAST = 10
"""Operations; of a crowd with fewer, next to nothing happened."""


def examined(
    store: str, folder: Path, what: Crowd, *, late_s: float | None = None
) -> tuple[Report, crowd.Run]:
    ran = crowd.run(store, folder, what)
    report = check(
        history_of(ran, folder),
        specification(what.kind, embedded=store.startswith("sqlite:")),
        late_s=late_s,
    )
    # Shown with a failure.
    print(f"{ran.kills} kills", report.summary())
    return report, ran


@pytest.mark.timeout(LASTS_S + 900)
@pytest.mark.parametrize("kind", ["locks", "turns", "claims", "counts", "fifo"])
def test_a_crowd_on_sqlite_is_linearizable(tmp_path: Path, kind: str) -> None:
    report, ran = examined(
        f"sqlite:{tmp_path}/store.sqlite", tmp_path, Crowd("calls", kind, SEED, LASTS_S)
    )
    assert (report.wrong, ran.failed) == ([], {})
    assert report.operations >= LEAST and ran.kills >= 1


@pytest.mark.timeout(LASTS_S + 900)
@pytest.mark.parametrize("kind", ["locks", "turns", "claims", "counts", "fifo"])
def test_a_crowd_on_postgres_is_linearizable(tmp_path: Path, postgres_url: str, kind: str) -> None:
    report, ran = examined(postgres_url, tmp_path, Crowd("calls", kind, SEED, LASTS_S))
    assert (report.wrong, ran.failed) == ([], {})
    assert report.operations >= LEAST and ran.kills >= 1


def several(
    store: str, folder: Path, what: Crowd, *, tries: int, late_s: float | None = None
) -> Iterator[list[str]]:
    """What is wrong with a crowd and with others like it: chance and the machine decide what each
    of them meets. One that is too tangled for a verdict, as a wrong one may be, says nothing; nor
    does one for which the machine had no time.
    """
    for number in range(tries):
        own = folder / str(number)
        own.mkdir()
        place = f"sqlite:{own}/store.sqlite" if store == "sqlite" else store
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HOLDFAST_NAMESPACE", f"crowd-{number}")
            try:
                report = examined(
                    place, own, what._replace(seed=what.seed + number), late_s=late_s
                )[0]
            except Undecided:
                continue
            if report.operations >= LEAST:
                yield report.wrong


def test_nobody_sleeps_through_its_turn(tmp_path: Path) -> None:
    """The honest program under the bound by which an early wake-up is found; the machine may stand
    still for once.
    """
    what = Crowd("calls", "turns", SEED, 2.0, processes=3, threads=1, part_s=60.0, kills=False)
    assert any(wrong == [] for wrong in several("sqlite", tmp_path, what, tries=3, late_s=LATE_S))


@pytest.mark.parametrize(
    ("bug", "kind"),
    [
        ("no_gate", "locks"),
        ("no_gate", "fifo"),
        ("any_token", "locks"),
        ("any_token", "claims"),
        ("any_token", "fifo"),
        ("unseen_holder", "locks"),
        ("double_hold", "counts"),
        ("two_slots", "fifo"),
    ],
)
def test_a_planted_bug_is_found(tmp_path: Path, bug: str, kind: str) -> None:
    met = several(
        "sqlite", tmp_path, Crowd("calls", kind, SEED, 1.0, kills=False, bug=bug), tries=TRIES
    )
    assert any("no order of the operations" in one for wrong in met for one in wrong)


@pytest.mark.parametrize("kind", ["locks", "counts"])
def test_a_latch_that_is_not_taken_is_found_on_postgres(
    tmp_path: Path, postgres_url: str, kind: str
) -> None:
    met = several(
        postgres_url,
        tmp_path,
        Crowd("calls", kind, SEED, 1.0, kills=False, bug="no_latch"),
        tries=TRIES,
    )
    assert any("no order of the operations" in one for wrong in met for one in wrong)


def test_an_early_wake_up_is_found(tmp_path: Path) -> None:
    what = Crowd(
        "calls",
        "turns",
        SEED,
        2.0,
        processes=3,
        threads=1,
        part_s=60.0,
        kills=False,
        bug="early_wake",
    )
    met = several("sqlite", tmp_path, what, tries=TRIES, late_s=LATE_S)
    assert any("after it could have gone" in one for wrong in met for one in wrong)
