"""PostgreSQL stopped, crashed and cut off under the load of several machines: nothing lost, nothing done twice.

HOLDFAST_RESTARTS and HOLDFAST_CUTS set how often; a run of the suite does it a few times.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

import holdfast
from holdfast.stores.postgres import open_postgres
from tests.hazards.postgres_load import Follower, check, load
from tests.stores.postgres_proxy import Proxy
from tests.stores.postgres_server import Server, running

pytestmark = pytest.mark.slow

RESTARTS = int(os.environ.get("HOLDFAST_RESTARTS", "4"))
CUTS = int(os.environ.get("HOLDFAST_CUTS", "9"))


@contextmanager
def followed(url: str) -> Iterator[Follower]:
    """A follower of the store, beside; when the block ends it has seen everything."""
    done = threading.Event()
    with closing(open_postgres(url)) as store:
        follower = Follower(store)
        thread = threading.Thread(target=follower.follow, args=(done,))
        thread.start()
        try:
            yield follower
        finally:
            done.set()
            thread.join()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as server:
        yield server


def test_a_server_restarted_and_crashed_again_and_again(server: Server) -> None:
    url = server.database()
    with followed(url) as follower, load(url) as machines:
        machines.progress()
        for number in range(RESTARTS):
            server.crash() if number % 2 else server.stop()
            server.start()
            machines.progress()
        told = machines.end()
    with holdfast.connect(url) as hf:
        check(hf, told, follower.seen)
    assert all(one.counted >= RESTARTS for one in told)


def test_connections_cut_before_at_and_after_their_commit(server: Server) -> None:
    url = server.database()
    with closing(Proxy(server.folder)) as proxy:
        distant = url.replace(str(server.folder), str(proxy.folder))
        with followed(url) as follower, load(distant) as machines:
            machines.progress()
            for number in range(CUTS):
                proxy.lost, proxy.lose = 0, ("before", "after", "all")[number % 3]
                machines.progress()
                assert proxy.lost
            proxy.lose = ""
            told = machines.end()
    with holdfast.connect(url) as hf:
        check(hf, told, follower.seen)
    # Every cut could be looked up, so that nobody was told of any.
    assert not [one.errors for one in told if one.errors]
