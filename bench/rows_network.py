"""The registry of hosts, routers and neighbours, with a thousand hosts and a hundred jobs, on each
store.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import holdfast
from bench import servers, work
from bench.measure import Contender, Lab, Sample, Series, alone, find
from bench.report import Row, Verdict

NAME = "network"

HOSTS = 1000
JOBS = 100
ROUTERS = 50
SET = 5
"""Routers that are locked at once."""

_FILES = "files:{folder}/registry"
_LOGGED = "files with the log"
_EMBEDDED = {"memory": "memory:", "sqlite": "sqlite:{folder}/store.sqlite", "files": _FILES}
_SURVIVES = {"memory": "nothing"}

_QUICK_HOSTS = 100
_PART = 10
"""The first and the last tenth of the hosts are compared."""


def measure(lab: Lab) -> list[Row]:
    with ExitStack() as stack:
        database = stack.enter_context(servers.postgres())
        urls = dict(_EMBEDDED) if database is None else {**_EMBEDDED, "postgres": database}
        absent = [] if database else ["PostgreSQL"]
        return lab.rows(
            {
                **{asked.title: partial(_row, lab, urls, absent, asked) for asked in _ASKED},
                "Register hosts one by one": partial(_growth, lab),
            }
        )


def _row(lab: Lab, urls: Mapping[str, str], absent: list[str], asked: "_Asked") -> Row:
    stores = {**urls, _LOGGED: _FILES} if asked.logged else urls
    contenders = [
        Contender(
            f"Holdfast, {store}",
            "one boot" if "lock" in asked.what and store == "sqlite" else _survives(store),
            lab.race(
                prepare=partial(_prepare, store, url),
                cast=partial(_cast, store, url, asked.kind),
                seconds=0.4,
            ),
        )
        for store, url in stores.items()
    ]
    series = lab.interleave(contenders, rounds=min(lab.rounds, asked.rounds))
    return Row(
        name=asked.name,
        title=asked.title,
        says=asked.says,
        series=series,
        verdicts=[_verdict(one, asked) for one in series],
        kind="time",
        logarithmic=True,
        absent=absent,
    )


def _survives(store: str) -> str:
    return _SURVIVES.get(store, work.FULL)


def _verdict(series: Series, asked: "_Asked") -> Verdict:
    figure = series.spread(lambda sample: 1000 * sample.p50_s / asked.parts)
    store = series.contender.name.removeprefix("Holdfast, ")
    return Verdict(
        f"ms to {asked.what}",
        f"under {asked.target_ms:g}",
        figure,
        figure.median < asked.target_ms,
        _MISSED.get((asked.what, store), ""),
        variant=store,
    )


_MISSED = {
    ("register", "sqlite"): "A registration is a durable change: it waits for the disk.",
    ("register", "files"): "A registration is a durable change: it waits for several syncs.",
    ("register", "postgres"): "A registration is a durable change: it waits for the server's disk.",
    ("lock a router", "postgres"): "A grant on PostgreSQL waits for the server's disk, because it "
    "must survive a crash of the server.",
    ("lock a router", _LOGGED): "The journal entry of each grant and release is appended to a file "
    "and synced.",
}


def _connect(store: str, url: str, folder: Path) -> tuple[Any, Callable[[], None]]:
    """A registry, and what closes it."""
    if store == _LOGGED:
        manager = holdfast.RegistryManager(
            {"registry_dir": str(folder / "registry"), "enable_transaction_log": True}
        )
        return manager, manager.close
    # A database is one for all rounds, and a round has a namespace of its own.
    namespace = "b" + "".join(c for c in folder.name if c.isalnum())
    hf = holdfast.connect(url.format(folder=folder), namespace=namespace)
    return hf.network, hf.close


def _prepare(store: str, url: str, folder: Path) -> None:
    if store != "memory":
        registry, close = _connect(store, url, folder)
        _fill(registry)
        close()


def _fill(registry: Any) -> None:
    registry.register_hosts([_host(number) for number in range(HOSTS)])
    for number in range(JOBS):
        leased = [(number * 10 + at) % HOSTS for at in range(10)]
        wanted = [
            {"host_name": f"h{at}", "job_type": "quick", "router_name": _router(at)}
            for at in leased
        ]
        registry.acquire_source_host_leases(f"job-{number}", wanted, pid=None)


def _cast(store: str, url: str, kind: "type[_Work]", folder: Path, _: int) -> Any:
    registry, close = _connect(store, url, folder)
    if store == "memory":
        _fill(registry)
    return kind(registry, close)


def _router(number: int) -> str:
    return f"router-{number % ROUTERS}"


def _host(number: int) -> dict[str, Any]:
    return {
        "host_name": f"h{number}",
        "primary_ip": f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}/8",
        "connected_to": _router(number),
        "mac_address": f"02:00:{number >> 24 & 255:02x}:{number >> 16 & 255:02x}:{number >> 8 & 255:02x}:{number & 255:02x}",
    }


class _Work:
    """A registry, and the numbers of its turns."""

    def __init__(self, registry: Any, close: Callable[[], None]) -> None:
        self.registry = registry
        self.close = close
        self.numbers = count(HOSTS)


class Lock(_Work):
    """Lock a router and unlock it."""

    def __call__(self) -> bool:
        router = _router(next(self.numbers))
        taken = self.registry.acquire_router_lock(router, "me", 0)
        return bool(taken and self.registry.release_router_lock(router, "me"))


class LockSet(_Work):
    """Lock some routers at once and unlock them."""

    def __call__(self) -> bool:
        first = next(self.numbers)
        routers = [_router(first + 7 * at) for at in range(SET)]
        taken = self.registry.acquire_all_router_locks_atomic(routers, "me", 0)
        return bool(taken) and self.registry.release_all_router_locks(routers, "me") == SET


class Register(_Work):
    """Register one more host."""

    def __call__(self) -> bool:
        return bool(self.registry.check_and_register_host(**_host(next(self.numbers))))


class Read(_Work):
    """Look a host up."""

    def __call__(self) -> bool:
        return self.registry.get_host_info(f"h{next(self.numbers) % HOSTS}") is not None


class _Asked(NamedTuple):
    """One measured operation, and its text on the page."""

    name: str
    title: str
    says: str
    what: str
    kind: type[_Work]
    target_ms: float
    parts: int = 1
    logged: bool = False
    """Whether it is also measured with the log of transactions."""
    rounds: int = 2


_ASKED = (
    _Asked(
        "network-lock",
        "Router lock and unlock",
        f"One program on a registry of {HOSTS} hosts on {ROUTERS} routers, with {JOBS} jobs that "
        "lease ten hosts each. The targets are the registry's own, in milliseconds. With "
        "the log (`enable_transaction_log`) the journal gets every grant and release.",
        "lock a router",
        Lock,
        1.0,
        logged=True,
        rounds=3,
    ),
    _Asked(
        "network-register",
        "Check and register a host",
        "On the same registry: one more host, whose name, address and MAC are held against all "
        "that are there.",
        "register",
        Register,
        5.0,
        rounds=3,
    ),
    _Asked(
        "network-set",
        f"{SET} routers at once",
        f"On the same registry: {SET} routers, all or none, and let go together. The target is "
        "for each of them.",
        "lock a router of a set",
        LockSet,
        10.0,
        SET,
    ),
    _Asked(
        "network-read",
        "Read a host",
        "On the same registry: one host by its name.",
        "read",
        Read,
        1.0,
    ),
)


def _growth(lab: Lab) -> Row:
    hosts = _QUICK_HOSTS if lab.quick else HOSTS
    contenders = [
        Contender(
            f"Holdfast, {store}",
            _survives(store),
            partial(_registered, store=store, url=_EMBEDDED[store], hosts=hosts),
        )
        for store in ("files", "sqlite")
    ]
    series = lab.interleave(contenders, rounds=min(lab.rounds, 3))
    files = find(series, "Holdfast, files")
    assert files is not None
    each = files.spread(lambda sample: 1000 / sample.rate)
    last = files.spread(lambda sample: sample.value)
    part = hosts // _PART
    return Row(
        name="network-hosts",
        title=f"Register {hosts:,} hosts one by one",
        says="In an empty registry; the time is that of one host. Each host is checked against "
        "all that are there. The "
        f"time of the last {part} divided by that of the first {part} is 1 if the work is linear.",
        series=series,
        verdicts=[
            Verdict(
                "ms each, on average, files store",
                "under 5",
                each,
                each.median < 5,
                "Each host is written and synced before the call returns.",
            ),
            Verdict(
                f"time of the last {part} to that of the first {part}, files store",
                "at most 1.5",
                last,
                last.median <= 1.5,
                "Each registration reads or writes a file that grows with the hosts.",
            ),
        ],
        kind="time",
        logarithmic=True,
    )


def _registered(folder: Path, *, store: str, url: str, hosts: int) -> Sample:
    took = alone(_register_all, folder, store, url, hosts)
    part = hosts // _PART
    return Sample(
        rate=hosts / sum(took),
        p50_s=statistics.median(took),
        worst_s=max(took),
        share=1.0,
        value=statistics.median(took[-part:]) / statistics.median(took[:part]),
    )


def _register_all(folder: Path, store: str, url: str, hosts: int) -> list[float]:
    registry, close = _connect(store, url, folder)
    took = []
    for number in range(hosts):
        before = time.perf_counter()
        assert registry.check_and_register_host(**_host(number))
        took.append(time.perf_counter() - before)
    close()
    return took
