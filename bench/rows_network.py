"""The registry of hosts, routers and neighbours, with a thousand hosts and a hundred jobs, on each
store.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import holdfast
from bench import servers, work
from bench.measure import Contender, Lab, Series
from bench.report import Row, Verdict
from holdfast.kernel.errors import HoldfastError
from holdfast.runtime.connection import Holdfast

NAME = "network"

HOSTS = 1000
JOBS = 100
ROUTERS = 50
SET = 5
"""Routers that are locked at once."""

_EMBEDDED = {
    "memory": "memory:",
    "sqlite": "sqlite:{folder}/store.sqlite",
    "files": "files:{folder}/registry",
}
_SURVIVES = {"memory": "nothing", "sqlite": work.FULL, "files": work.FULL, "postgres": work.FULL}


def measure(lab: Lab) -> list[Row]:
    with ExitStack() as stack:
        database = stack.enter_context(servers.postgres())
        urls = dict(_EMBEDDED) if database is None else {**_EMBEDDED, "postgres": database}
        chosen = {name: url for name, url in urls.items() if _opens(lab, url)}
        absent = sorted({*_EMBEDDED, "postgres"} - set(chosen))
        return [_row(lab, chosen, absent, asked) for asked in _ASKED]


def _row(
    lab: Lab,
    urls: dict[str, str],
    absent: list[str],
    asked: "_Asked",
) -> Row:
    contenders = [
        Contender(
            f"Holdfast, {store}",
            "one boot" if "lock" in asked.what and store == "sqlite" else _SURVIVES[store],
            lab.race(
                prepare=partial(_prepare, url), cast=partial(_cast, url, asked.kind), seconds=0.5
            ),
        )
        for store, url in urls.items()
    ]
    series = lab.interleave(contenders)
    return Row(
        name=asked.name,
        title=asked.title,
        says=asked.says,
        series=series,
        verdicts=[_verdict(one, asked.what, asked.target_ms, asked.parts) for one in series],
        kind="time",
        logarithmic=True,
        absent=absent,
    )


def _verdict(series: Series, what: str, target_ms: float, parts: int) -> Verdict:
    figure = series.spread(lambda sample: 1000 * sample.p50_s / parts)
    return Verdict(
        f"ms to {what}, {series.contender.name}",
        f"under {target_ms:g}",
        figure,
        figure.median < target_ms,
        _MISSED.get(what, ""),
    )


_MISSED = {
    "lock a router": "A grant on PostgreSQL is two messages and a sync of the server's disk, because "
    "it must survive a crash of the server.",
}


def _opens(lab: Lab, url: str) -> bool:
    with lab.folder() as folder:
        try:
            _connect(url, folder).close()
        except HoldfastError:
            return False
    return True


def _connect(url: str, folder: Path) -> Holdfast:
    # A database is one for all rounds, and a round has a namespace of its own.
    return holdfast.connect(
        url.format(folder=folder), namespace="b" + "".join(c for c in folder.name if c.isalnum())
    )


def _prepare(url: str, folder: Path) -> None:
    if not url.startswith("memory"):
        with _connect(url, folder) as hf:
            _fill(hf)


def _fill(hf: Holdfast) -> None:
    hf.network.register_hosts([_host(number) for number in range(HOSTS)])
    for number in range(JOBS):
        leased = [(number * 10 + at) % HOSTS for at in range(10)]
        wanted = [
            {"host_name": f"h{at}", "job_type": "quick", "router_name": _router(at)}
            for at in leased
        ]
        hf.network.acquire_source_host_leases(f"job-{number}", wanted, pid=None)


def _cast(url: str, kind: Callable[[Holdfast], Any], folder: Path, _: int) -> Any:
    hf = _connect(url, folder)
    if url.startswith("memory"):
        _fill(hf)
    return kind(hf)


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
    """A connection, and the numbers of its turns."""

    def __init__(self, hf: Holdfast) -> None:
        self.hf = hf
        self.numbers = count(HOSTS)

    def close(self) -> None:
        self.hf.close()


class Lock(_Work):
    """Lock a router and unlock it."""

    def __call__(self) -> bool:
        router = _router(next(self.numbers))
        return self.hf.network.acquire_router_lock(
            router, "me", 0
        ) and self.hf.network.release_router_lock(router, "me")


class LockSet(_Work):
    """Lock some routers at once and unlock them."""

    def __call__(self) -> bool:
        first = next(self.numbers)
        routers = [_router(first + 7 * at) for at in range(SET)]
        taken = self.hf.network.acquire_all_router_locks_atomic(routers, "me", 0)
        return taken and self.hf.network.release_all_router_locks(routers, "me") == SET


class Register(_Work):
    """Register one more host."""

    def __call__(self) -> bool:
        return self.hf.network.check_and_register_host(**_host(next(self.numbers)))


class Read(_Work):
    """Look a host up."""

    def __call__(self) -> bool:
        return self.hf.network.get_host_info(f"h{next(self.numbers) % HOSTS}") is not None


class _Asked(NamedTuple):
    """One measured operation, and its text on the page."""

    name: str
    title: str
    says: str
    what: str
    kind: Callable[[Holdfast], Any]
    target_ms: float
    parts: int = 1


_ASKED = (
    _Asked(
        "network-lock",
        "Router lock and unlock",
        f"One program on a registry of {HOSTS} hosts on {ROUTERS} routers, with {JOBS} jobs that "
        "lease ten hosts each. "
        "The targets are the registry's own, in milliseconds.",
        "lock a router",
        Lock,
        1.0,
    ),
    _Asked(
        "network-register",
        "Check and register a host",
        "On the same registry: one more host, whose name, address and MAC are held against all "
        "that are there.",
        "register",
        Register,
        5.0,
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
