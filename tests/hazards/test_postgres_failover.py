"""A primary that dies for good under load: its synchronous standby takes over, and knows all that
anybody was told.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from operator import methodcaller

import psycopg
import pytest

import holdfast
from holdfast.kernel import token
from holdfast.kernel.errors import StoreUnavailable
from holdfast.stores.postgres import open_postgres
from holdfast.testing.conformance.harness import OTHERS, THINGS, Thing, put
from tests.hazards.postgres_load import check, followed, load
from tests.stores.postgres_server import Server, running
from tests.stores.postgres_standby import FOR_STANDBY, promote, replicated

pytestmark = pytest.mark.prove

WAITING = "1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
COMMIT_S = 10.0
"""Long enough to come as far as the commit on a busy machine too, and all of it is waited for."""
ROUNDS = int(os.environ.get("HOLDFAST_ROUNDS", "3"))


def both(primary: Server, standby: Server, name: str) -> str:
    """The URL of a database on whichever of the two is the primary."""
    return f"postgresql://holdfast@/{name}?host={primary.folder},{standby.folder}"


def test_a_promoted_standby_knows_everything_that_was_acknowledged() -> None:
    with running(**FOR_STANDBY) as primary, replicated(primary) as standby:
        name = primary.database().partition("@/")[2].partition("?")[0]
        url = both(primary, standby, name)
        with followed(url) as follower, load(url) as machines:
            machines.progress(ROUNDS)
            with closing(open_postgres(url)) as store:
                last = put(store, "last of the primary")
            primary.kill()
            promote(standby)
            machines.progress(ROUNDS)
            reported = machines.end()
        with holdfast.connect(url) as hf:
            check(hf, reported, follower.seen)
            assert hf.store.get(THINGS, "last of the primary") is not None
            assert token.era(put(hf.store, "first of the standby")) > token.era(last)


def test_a_commit_that_no_standby_confirmed_is_never_called_done() -> None:
    """The standby stands still; the commit is on the primary's disk alone when the caller's time is
    up.
    """
    with (
        running(**FOR_STANDBY) as primary,
        replicated(primary) as standby,
        closing(open_postgres(primary.url)) as store,
    ):
        for space in (THINGS, OTHERS):
            store.transact(methodcaller("put", space, "a", Thing()), scope=[space])
        standby.stop()
        with pytest.raises(StoreUnavailable) as caught:
            store.transact(
                lambda tx: tx.put(THINGS, "b", Thing()), scope=[THINGS], timeout_s=COMMIT_S
            )
        assert caught.value.fields["outcome"] == "unknown"
        # Nor when the session that waited is ended, which leaves the commit there for all to see.
        with ThreadPoolExecutor(1) as pool, psycopg.connect(primary.url, autocommit=True) as raw:
            written = pool.submit(
                store.transact,
                lambda tx: tx.put(OTHERS, "c", Thing()),
                scope=[OTHERS],
                timeout_s=COMMIT_S,
            )
            while (
                len(raw.execute(f"SELECT pg_sleep(0.01), {WAITING}".encode()).fetchall()) < 2
                and not written.done()
            ):
                continue
            assert (
                raw.execute(f"SELECT pg_terminate_backend(pid), {WAITING}".encode()).rowcount == 2
            )
            with pytest.raises(StoreUnavailable) as caught:
                written.result()
            assert caught.value.fields["outcome"] == "unknown"
            assert raw.execute(f"SELECT key FROM holdfast.s_{OTHERS.name}".encode()).fetchall() == [
                ("a",),
                ("c",),
            ]


def test_a_standby_alone_is_refused_by_name() -> None:
    with running(**FOR_STANDBY) as primary, replicated(primary) as standby:
        with closing(open_postgres(primary.url)) as store:
            put(store, "a")
        with pytest.raises(StoreUnavailable, match="standby"):
            open_postgres(standby.url)
