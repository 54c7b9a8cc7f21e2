"""Random sequences of everything that can happen to the lock table, each step compared with a
plain-Python oracle.

One process plays all jobs, on a clock that moves only when told: they ask, take transaction, give up, are
kicked, renew, die, and are watched by those behind them as sleeping waiters watch. What is compared
after every step: who holds what, who waits in which order, who was let go and in which order, who
was told what, who was woken, and what the journal says of it. At the end everyone who still waits
must get a turn.

Waiters are played as they are: one knows who is just ahead of it from the last time that it was
woken, and from nothing else; or, to see the rules alone, each looks after every step.
HOLDFAST_LOCK_EXAMPLES tries more sequences.
"""

import os
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from holdfast.kernel.store import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.clock import ManualClock
from tests.model.lock_machine import LockMachine
from tests.model.search import search

pytestmark = pytest.mark.prove


EXAMPLES = int(os.environ.get("HOLDFAST_LOCK_EXAMPLES", "100"))
"""Sequences that are tried in memory; a store on a disk or behind a socket gets a part of them."""


Opener = Callable[[ManualClock], Store]


def agree(
    open_store: Opener, *, several: bool, wakes: bool, examples: int, steps: int = 50
) -> None:
    search(
        lambda: LockMachine(open_store, several=several, wakes=wakes),
        examples=examples,
        steps=steps,
    )


KINDS = pytest.mark.parametrize(
    "several", [False, True] if "HOLDFAST_LOCK_EXAMPLES" in os.environ else [False]
)
"""Jobs of one thread; in a longer search, of several threads and parts too."""


@KINDS
def test_the_lock_table_in_memory_agrees_with_the_oracle(several: bool) -> None:
    agree(lambda clock: MemoryStore(clock=clock), several=several, wakes=False, examples=EXAMPLES)


@KINDS
def test_the_lock_table_in_sqlite_agrees_with_the_oracle(several: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        numbers = count()

        def sqlite(clock: ManualClock) -> Store:
            return SqliteStore(
                Path(folder) / f"{next(numbers)}.sqlite", boot_id="boot-1", clock=clock
            )

        agree(sqlite, several=several, wakes=False, examples=EXAMPLES // 15)


@KINDS
def test_the_lock_table_in_postgres_agrees_with_the_oracle(
    postgres_url: str, several: bool
) -> None:
    from holdfast.stores.postgres import open_postgres

    numbers = count()

    def postgres(clock: ManualClock) -> Store:
        """Each example in a namespace of its own, which is quicker made than a database."""
        return open_postgres(postgres_url, f"example-{next(numbers)}")

    agree(postgres, several=several, wakes=False, examples=EXAMPLES // 25)
