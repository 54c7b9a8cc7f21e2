"""`holdfast store copy` and gateways: accepted requests are there for the agent's next gateway, or
nothing is copied.
"""

from contextlib import closing
from pathlib import Path

import pytest

import holdfast
from holdfast.domains.gateway.adapter import CommandSpec
from holdfast.kernel.errors import Collision, Held
from holdfast.kernel.settings import Settings
from holdfast.kernel.store import Store
from holdfast.primitives.journal import Journal
from holdfast.primitives.queue.records import Draft, QueueRequest
from holdfast.primitives.steady_clock import CLOCK_SIGHTINGS, ClockSighting, steady_clock
from holdfast.runtime.gateway_host import GatewayParts, open_gateway
from holdfast.runtime.maintenance import Upkeep
from tests.harness.queue_steps import SteppedQueue
from tests.stores.postgres_server import Server

pytestmark = pytest.mark.prove


class Place:
    """A store, and the folder of its gateways."""

    def __init__(self, url: str, gateways: Path) -> None:
        self.url = url
        self.gateways = gateways

    def gateway(self, agent: str = "gpu", namespace: str = "default") -> GatewayParts:
        settings = Settings(store=self.url, gateway_root=str(self.gateways), namespace=namespace)
        return open_gateway(agent, CommandSpec(command=("true",)), settings, on_lost=lambda: None)

    def copy(self, target: "Place") -> dict[str, int]:
        return Upkeep(Settings(store=self.url, gateway_root=str(target.gateways))).copy(target.url)


def begin(url: str) -> None:
    """Make a store, as a program that writes to it does."""
    with holdfast.connect(url) as hf:
        hf.holds.take("any", by="x")


def stepped(parts: GatewayParts) -> SteppedQueue:
    return SteppedQueue(parts.store, Journal(parts.store, actor="test"), parts.gateway.queue.name)


def accept(parts: GatewayParts, *keys: str) -> None:
    drafts = [Draft(kind="prompt", payload={"prompt": key}, idempotency_key=key) for key in keys]
    assert all(isinstance(one, QueueRequest) for one in stepped(parts).accept(drafts))


def waiting(parts: GatewayParts) -> list[tuple[str, str | None]]:
    return [(one.request_id, one.idempotency_key) for one in parts.gateway.queue.list()]


def test_accepted_requests_go_into_the_database_and_back(tmp_path: Path, postgres_url: str) -> None:
    first = Place(f"sqlite:{tmp_path / 'a.sqlite'}", tmp_path / "gateways")
    between = Place(postgres_url, tmp_path / "gateways")
    last = Place(f"sqlite:{tmp_path / 'b.sqlite'}", tmp_path / "others")
    begin(first.url)
    known = {}
    for agent, namespace in (("gpu", "default"), ("cpu", "default"), ("gpu", "other")):
        with closing(first.gateway(agent, namespace)) as parts:
            accept(parts, f"{agent} 1", f"{agent} 2")
            known[agent, namespace] = waiting(parts)
    for source, target in ((first, between), (between, last)):
        assert source.copy(target)["requests"] == 6
        for (agent, namespace), requests in known.items():
            with closing(target.gateway(agent, namespace)) as parts:
                assert waiting(parts) == requests
                # The key still stands for the same request, and what comes now is behind all of
                # them.
                accept(parts, f"{agent} 1")
                assert waiting(parts) == requests
                kinds = [
                    entry.kind
                    for entry in parts.store.journal().entries
                    if entry.data.get("agent") == agent
                ]
                assert kinds.count("request.accepted") == 2
    with closing(last.gateway()) as parts:
        claimed = stepped(parts).claim(epoch=parts.gateway.queue.list()[0].epoch)
        assert (
            claimed is not None
            and (claimed.request_id, claimed.idempotency_key) == known["gpu", "default"][0]
        )


def test_a_gateway_that_serves_keeps_a_store_from_being_copied(
    tmp_path: Path, postgres_url: str
) -> None:
    first, second = (
        Place(f"sqlite:{tmp_path / 'a.sqlite'}", tmp_path / "g"),
        Place(postgres_url, tmp_path / "g"),
    )
    begin(first.url)
    with closing(first.gateway()):
        with pytest.raises(Held, match="holdfast gateway detach gpu"):
            first.copy(second)
    first.copy(second)
    third = Place(f"sqlite:{tmp_path / 'b.sqlite'}", tmp_path / "h")
    with closing(second.gateway()), pytest.raises(Held, match="detach gpu"):
        second.copy(third)
    assert not (tmp_path / "b.sqlite").exists() and not list((tmp_path / "h").rglob("queue.sqlite"))


def test_a_queue_that_is_already_there_is_named_and_left_as_it_is(
    tmp_path: Path, postgres_url: str
) -> None:
    database = Place(postgres_url, tmp_path / "gateways")
    for agent in ("a", "b"):
        with closing(database.gateway(agent)) as parts:
            accept(parts, agent)
    target = Place(f"sqlite:{tmp_path / 'b.sqlite'}", tmp_path / "gateways")
    with closing(target.gateway("b")) as parts:
        accept(parts, "kept")
    with pytest.raises(Collision, match=r"b/queue\.sqlite is there already"):
        database.copy(target)
    assert not (tmp_path / "b.sqlite").exists()
    assert [path.parent.name for path in (tmp_path / "gateways").rglob("queue.sqlite")] == ["b"]
    with closing(target.gateway("b")) as parts:
        assert [key for _, key in waiting(parts)] == ["kept"]


def test_between_embedded_stores_queues_go_along_unless_they_are_where_they_belong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres_server: Server
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "one").mkdir()
    source = f"sqlite:{tmp_path / 'one' / 'a.sqlite'}"
    spec, settings = CommandSpec(command=("true",)), Settings(store=source)
    begin(source)
    with closing(open_gateway("gpu", spec, settings, on_lost=lambda: None)) as parts:
        accept(parts, "x")
        known = waiting(parts)
    for target in (
        f"sqlite:{tmp_path / 'one' / 'b.sqlite'}",
        f"files:{tmp_path / 'files'}",
        postgres_server.database(),
    ):
        Upkeep(settings).copy(target)
        with closing(
            open_gateway("gpu", spec, Settings(store=target), on_lost=lambda: None)
        ) as parts:
            assert waiting(parts) == known, target


JUMPED = 4000.0


def set_forward(store: Store) -> None:
    """Leave word that the store's clock was set forward just now."""
    time = store.monotonic()
    passed_s = time.seconds
    seen = ClockSighting(at=store.now(), passed_s=passed_s, jump_s=JUMPED, jumped_s=passed_s)
    store.transact(lambda tx: tx.put(CLOCK_SIGHTINGS, time.clock, seen), scope=[CLOCK_SIGHTINGS])


def jump(store: Store) -> float | None:
    found = steady_clock(store).peek()
    return None if found is None else found.seconds


def test_clock_observations_are_copied_only_to_a_store_with_the_same_clock(
    tmp_path: Path, postgres_server: Server
) -> None:
    """An embedded store and the queues beside it go by the machine's clock; a database has
    another.
    """
    first = Place(f"sqlite:{tmp_path / 'a.sqlite'}", tmp_path / "g")
    begin(first.url)
    with holdfast.connect(first.url) as hf, closing(first.gateway()) as parts:
        accept(parts, "x")
        set_forward(hf.store)
        set_forward(parts.gateway.queue.store)
    copied = Place(f"sqlite:{tmp_path / 'b.sqlite'}", tmp_path / "g")
    database, other = (Place(postgres_server.database(), tmp_path / "g") for _ in range(2))
    last = Place(f"sqlite:{tmp_path / 'c.sqlite'}", tmp_path / "h")
    for source, target, expected in (
        (first, copied, JUMPED),
        (first, database, None),
        (database, other, None),
        (other, last, None),
    ):
        counts = source.copy(target)
        assert counts["requests"] == (0 if target is copied else 1)
        with holdfast.connect(target.url) as hf:
            assert (
                hf.store.read(lambda tx: tx.count(CLOCK_SIGHTINGS), scope=[CLOCK_SIGHTINGS]) > 0
            ) == (expected is not None)
            assert (counts["clock_sightings"] > 0) == (expected is not None)
            assert jump(hf.store) == expected
            set_forward(hf.store)
    with closing(last.gateway()) as parts:
        assert jump(parts.gateway.queue.store) is None
