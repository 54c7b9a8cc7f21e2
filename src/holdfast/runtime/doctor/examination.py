"""All checks in order, each within its time limit. A check that hangs is reported and left."""

import threading
from collections.abc import Iterator
from contextlib import closing

from msgspec.structs import replace

from holdfast.kernel.clock import Clock, SystemClock
from holdfast.kernel.errors import HoldfastError, InvalidValue
from holdfast.kernel.limits import DOCTOR_CHECK_S
from holdfast.kernel.settings import Settings
from holdfast.runtime.configuration import load_settings
from holdfast.runtime.connection import Holdfast, connected
from holdfast.runtime.doctor import permissions, records, services
from holdfast.runtime.doctor import settings as configured
from holdfast.runtime.doctor import store as stored
from holdfast.runtime.doctor.finding import Check, Finding, fail, failed

# Errors of the store itself. What keeps one check waiting would keep all others too.
_STORE_ERRORS = ("store_unavailable", "store_corrupt", "lock_timeout")


def examine(
    store: str | None = None,
    namespace: str | None = None,
    *,
    clock: Clock | None = None,
    limit_s: float = DOCTOR_CHECK_S,
) -> Iterator[Finding]:
    """Examine everything, as connecting to this store would find it, and yield each finding at
    once.

    Raises nothing for what is wrong here. Checks that need the store are left out where it cannot
    be opened. `clock` is this machine's.
    """
    loaded: list[Settings] = []

    def load() -> list[Finding]:
        try:
            loaded.append(load_settings(store=store, namespace=namespace))
        except InvalidValue as error:
            fix = "docs/settings.md lists every setting and its values"
            return [fail(error.message, fix, error.code)]
        return configured.settings(loaded[0], chosen_by="--store" if store else None)

    yield from within(limit_s, "settings", load)
    settings = loaded[0] if loaded else None
    yield from within(limit_s, "machine", lambda: configured.machine(settings))
    if settings is None:
        yield from within(limit_s, "tmux", lambda: services.tmux(needed_by=[]))
        return
    before: dict[str, Check] = {
        "extras": lambda: configured.extras(settings),
        "disk": lambda: stored.disk(settings),
        "permissions": lambda: permissions.permissions(settings),
        "log": lambda: stored.logs(settings),
        "gate": lambda: stored.gates(settings),
    }
    for name, check in before.items():
        yield from within(limit_s, name, check)
    opened: list[Holdfast] = []

    def open_store() -> list[Finding]:
        opened.append(connected(settings, create=False))
        return stored.store(opened[0])

    found = within(limit_s, "store", open_store)
    yield from found
    if not opened:
        yield from _beside_store(None, limit_s)
        return
    with closing(opened[0]) as hf:
        for name, check in _in_store(hf, clock or SystemClock()).items():
            if any(finding.code in _STORE_ERRORS for finding in found):
                break
            found = within(limit_s, name, check)
            yield from found
        answers = not any(finding.code in _STORE_ERRORS for finding in found)
        yield from _beside_store(hf, limit_s, answers=answers)


def _in_store(hf: Holdfast, clock: Clock) -> dict[str, Check]:
    """The checks that ask the store alone."""
    # The gates of an embedded store are files, which were looked at before it was opened.
    latches: dict[str, Check] = {} if hf.store.embedded else {"gate": lambda: stored.latches(hf)}
    return {
        "schema": lambda: stored.schema(hf),
        "records": lambda: records.records(hf),
        "queues": lambda: records.queues(hf),
        "clock": lambda: stored.clocks(hf, clock),
        "leftovers": lambda: records.leftovers(hf),
        "journal": lambda: records.followers(hf),
        **latches,
        "permissions": lambda: permissions.strangers(hf),
    }


def _beside_store(
    hf: Holdfast | None, limit_s: float, *, answers: bool = False
) -> Iterator[Finding]:
    """The checks of services. A store that answers says who needs tmux and a broker."""
    asked = hf if answers else None
    yield from within(
        limit_s,
        "tmux",
        lambda: services.tmux(needed_by=[] if asked is None else services.tmux_users(asked)),
    )
    yield from within(limit_s, "broker", lambda: services.broker(asked))
    if hf is not None:
        yield from within(limit_s, "gateways", lambda: services.gateways(hf))
        yield from within(limit_s, "server", lambda: services.server(hf))


def within(limit_s: float, name: str, check: Check) -> list[Finding]:
    """What a check finds within a time limit."""
    results: list[list[Finding]] = []

    def run() -> None:
        try:
            results.append(list(check()))
        except HoldfastError as error:
            results.append([failed(error)])
        except OSError as error:
            says = f"{error.filename or name}: {error.strerror}"
            results.append([fail(says, "let this user read it", "unavailable")])

    # A daemon: a thread that hangs in the kernel cannot be ended, and the program must end.
    thread = threading.Thread(target=run, daemon=True, name=f"holdfast-doctor-{name}")
    thread.start()
    thread.join(limit_s)
    findings = (
        results[0]
        if results
        else [
            fail(
                f"it could not be checked within {limit_s:g} s",
                "look at what it waits for: a disk, a server or a stopped process",
                "lock_timeout",
            )
        ]
    )
    return [replace(finding, check=name) for finding in findings]
