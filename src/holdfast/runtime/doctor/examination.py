"""All checks in order, each within its time limit. One that hangs is left behind and told of."""

import threading
from collections.abc import Iterator
from contextlib import closing

from holdfast.kernel.clock import Clock, SystemClock
from holdfast.kernel.errors import HoldfastError, InvalidValue
from holdfast.kernel.limits import DOCTOR_CHECK_S
from holdfast.kernel.settings import Settings
from holdfast.runtime.configuration import load_settings
from holdfast.runtime.connection import Holdfast, connected
from holdfast.runtime.doctor import permissions, records, services
from holdfast.runtime.doctor import records as left
from holdfast.runtime.doctor import settings as configured
from holdfast.runtime.doctor import store as stored
from holdfast.runtime.doctor.finding import Finding, Looks, fail, failed


def examine(
    store: str | None = None,
    namespace: str | None = None,
    *,
    clock: Clock | None = None,
    limit_s: float = DOCTOR_CHECK_S,
) -> Iterator[Finding]:
    """Look at everything, as connecting to this store would find it, and say what is found as it is
    found.

    Raises nothing for what is wrong here. What needs the store is looked at only where the store
    can be opened. `clock` is this machine's.
    """
    settings: list[Settings] = []

    def load() -> list[Finding]:
        try:
            settings.append(load_settings(store=store, namespace=namespace))
        except InvalidValue as error:
            return [
                fail(
                    "settings",
                    error.message,
                    "docs/settings.md lists every setting and its values",
                    error.code,
                )
            ]
        return configured.settings(settings[0], chosen_by="--store" if store else None)

    yield from within(limit_s, "settings", load)
    yield from within(
        limit_s, "machine", lambda: configured.machine(settings[0] if settings else None)
    )
    if not settings:
        yield from within(limit_s, "tmux", lambda: services.tmux(needed_by=[]))
        return
    yield from _of_store(settings[0], clock or SystemClock(), limit_s)


def _of_store(settings: Settings, clock: Clock, limit_s: float) -> Iterator[Finding]:
    yield from within(limit_s, "extras", lambda: configured.extras(settings))
    yield from within(limit_s, "disk", lambda: stored.disk(settings))
    yield from within(limit_s, "permissions", lambda: permissions.permissions(settings))
    yield from within(limit_s, "log", lambda: stored.logs(settings))
    yield from within(limit_s, "gate", lambda: stored.gates(settings))
    opened: list[Holdfast] = []
    found = within(limit_s, "store", lambda: _open(settings, opened))
    yield from found
    if not opened:
        yield from _apart(None, limit_s)
        return
    with closing(opened[0]) as hf:
        answers = not _away(found)
        for name, look in _in_store(hf, clock).items():
            if answers:
                found = within(limit_s, name, look)
                yield from found
                # What kept one check waiting would keep all others too.
                answers = not _away(found)
        yield from _apart(hf, limit_s, answers=answers)


def _in_store(hf: Holdfast, clock: Clock) -> dict[str, Looks]:
    """The checks that ask the store alone."""
    # The gates of an embedded store are files, which were looked at before it was opened.
    latches: dict[str, Looks] = {} if hf.store.embedded else {"gate": lambda: stored.latches(hf)}
    return {
        "schema": lambda: stored.schema(hf),
        "records": lambda: records.records(hf),
        "queues": lambda: records.queues(hf),
        "clock": lambda: stored.clocks(hf, clock),
        "leftovers": lambda: left.leftovers(hf),
        "journal": lambda: left.followers(hf),
        **latches,
        "permissions": lambda: permissions.strangers(hf),
    }


def _apart(hf: Holdfast | None, limit_s: float, *, answers: bool = False) -> Iterator[Finding]:
    """What is beside the store; who needs it is asked of the store where that answers."""
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


def _away(findings: list[Finding]) -> bool:
    return any(
        finding.code in ("store_unavailable", "store_corrupt", "lock_timeout")
        for finding in findings
    )


def _open(settings: Settings, opened: list[Holdfast]) -> list[Finding]:
    opened.append(connected(settings, create=False))
    return stored.store(opened[0])


def within(limit_s: float, name: str, look: Looks) -> list[Finding]:
    """What a check finds within a time limit."""
    found: list[list[Finding]] = []

    def run() -> None:
        try:
            found.append(list(look()))
        except HoldfastError as error:
            found.append([failed(name, error)])
        except OSError as error:
            mend = "see to it that this user may read it"
            found.append(
                [fail(name, f"{error.filename or name}: {error.strerror}", mend, "unavailable")]
            )

    # A daemon, as what hangs in the kernel cannot be ended, and the program must.
    thread = threading.Thread(target=run, daemon=True, name=f"holdfast-doctor-{name}")
    thread.start()
    thread.join(limit_s)
    if found:
        return found[0]
    mend = "look at what it waits for: a disk, a server or a stopped process"
    return [fail(name, f"it could not be looked at within {limit_s:g} s", mend, "lock_timeout")]
