"""A crowd of jobs in many processes on one store, killed and stopped at random: what they recorded
must obey the rules.

HOLDFAST_CROWD_S makes a crowd last longer than in the suite, and HOLDFAST_CROWD_SEED chooses
another.
"""

import os
import re
from collections import Counter
from pathlib import Path

import pytest

from holdfast.kernel.limits import BACKFILL_MAX, LOCK_PRIORITY_AGE_S, WAIT_RECHECK_S
from proof.crowd import lock_crowd
from proof.crowd.lock_history import Rules, violations
from proof.crowd.plan import Crowd

pytestmark = pytest.mark.prove

SEED = int(os.environ.get("HOLDFAST_CROWD_SEED", "20263"))
LASTS_S = float(os.environ.get("HOLDFAST_CROWD_S", "8"))

TRIES = 3
OF_TIME = "learnt of its grant|while all was free"
"""What a machine that stands still for a moment can be to blame for."""
BUSY = 4
"""More that want to run than this, for each processor, and who is late proves nothing."""

RULES = Rules(backfill_max=BACKFILL_MAX, age_s=LOCK_PRIORITY_AGE_S, recheck_s=WAIT_RECHECK_S)


def lock_crowd_of(kind: str, lasts_s: float) -> Crowd:
    return Crowd(
        "lock_jobs", kind, SEED, lasts_s, processes=10, threads=10, pause_s=0.5, killed=0.5
    )


def _wrong(store: str, folder: Path, crowd: Crowd) -> list[str]:
    """Run a crowd, and say what was wrong with it."""
    ran = lock_crowd.run(store, folder, crowd)
    asks = ran.history.asks.values()
    # Shown with a failure.
    print(
        Counter(ask.end or "killed" for ask in asks),
        sum(ask.queued < ask.ended for ask in asks),
        "waited",
    )
    assert len(asks) >= crowd.processes * crowd.threads, "next to nothing happened"
    return [
        *violations(ran.history, RULES, ran.granted_at),
        *(f"left behind: {row}" for row in ran.left),
    ]


def _in_time(store: str, folder: Path, kind: str = "mixed") -> None:
    """A crowd that breaks no rule; nor, unless the machine is to blame, any that is about time."""
    for number in range(TRIES):
        own = folder / str(number)
        own.mkdir()
        wrong = _wrong(store.format(folder=own), own, lock_crowd_of(kind, LASTS_S))
        assert [one for one in wrong if not re.search(OF_TIME, one)] == []
        if not wrong or os.getloadavg()[0] > BUSY * (os.cpu_count() or 1):
            return
    raise AssertionError(wrong)


@pytest.mark.timeout(LASTS_S + 900)
@pytest.mark.parametrize("kind", ["mixed", "queue"])
def test_a_crowd_on_sqlite_obeys_the_rules(tmp_path: Path, kind: str) -> None:
    _in_time("sqlite:{folder}/store.sqlite", tmp_path, kind)


@pytest.mark.timeout(LASTS_S + 900)
def test_a_crowd_on_postgres_obeys_the_rules(tmp_path: Path, postgres_url: str) -> None:
    _in_time(postgres_url, tmp_path)


@pytest.mark.parametrize(
    ("bug", "kind", "found"),
    [
        ("unseen_holder", "mixed", "two holders"),
        ("live_holder_judged_dead", "queue", "two holders|was lost|failed"),
        ("random_tokens", "queue", "do not grow"),
        ("random_order", "queue", "the later went first"),
        ("no_overtaking_limit", "large", "was passed by"),
        ("no_wake", "queue", "learnt of its grant|while all was free"),
        ("no_deadlock_check", "nested", "a deadlock that no job got"),
    ],
)
def test_a_planted_bug_is_found(tmp_path: Path, bug: str, kind: str, found: str) -> None:
    """A smaller crowd that is left alone, on a lock manager with a fault in it: for longer, where
    the machine is too busy for much to happen at first.
    """
    crowd = lock_crowd_of(kind, 3.0)._replace(processes=4, threads=4, kills=False, bug=bug)
    if bug == "no_wake":
        # Each of them gets on only once in two seconds.
        crowd = crowd._replace(processes=2, threads=2)
    for lasts_s in (3.0, 10.0, 30.0):
        own = tmp_path / str(lasts_s)
        own.mkdir()
        wrong = _wrong(f"sqlite:{own}/store.sqlite", own, crowd._replace(lasts_s=lasts_s))
        if any(re.search(found, one) for one in wrong):
            return
    raise AssertionError(f"not found, but {wrong}")
