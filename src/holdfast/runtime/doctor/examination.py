"""All checks in order, each within its time limit."""

from collections.abc import Iterator, Mapping

from holdfast.kernel.clock import Clock, SystemClock
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.limits import DOCTOR_CHECK_S
from holdfast.kernel.settings import Settings
from holdfast.runtime.configuration import load_settings
from holdfast.runtime.connection import Holdfast, connected
from holdfast.runtime.doctor import machine, records, services
from holdfast.runtime.doctor import store as stored
from holdfast.runtime.doctor.finding import Check, Finding, fail, within

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

    def all_of(checks: Mapping[str, Check]) -> Iterator[Finding]:
        for name, check in checks.items():
            yield from within(limit_s, name, check)

    settings: Settings | None = None

    def load() -> list[Finding]:
        nonlocal settings
        try:
            settings = load_settings(store=store, namespace=namespace)
        except InvalidValue as error:
            fix = "docs/settings.md lists every setting and its values"
            return [fail(error.message, fix, error.code)]
        return machine.settings(settings, chosen_by="--store" if store else None)

    yield from within(limit_s, "settings", load)
    yield from within(limit_s, "machine", lambda: machine.machine(settings))
    if (loaded := settings) is None:
        yield from within(limit_s, "tmux", lambda: services.tmux(None))
        return
    yield from all_of(
        {
            "extras": lambda: machine.extras(loaded),
            "disk": lambda: stored.disk(loaded),
            "permissions": lambda: machine.permissions(loaded),
            "log": lambda: stored.logs(loaded),
            "gate": lambda: stored.gates(loaded),
        }
    )
    hf: Holdfast | None = None

    def open_store() -> list[Finding]:
        nonlocal hf
        hf = connected(loaded, create=False)
        return stored.store(hf)

    found = within(limit_s, "store", open_store)
    yield from found
    if (opened := hf) is None:
        yield from all_of(
            {"tmux": lambda: services.tmux(None), "broker": lambda: services.broker(None)}
        )
        return
    with opened:
        for name, check in _store_checks(opened, clock or SystemClock()).items():
            if any(finding.code in _STORE_ERRORS for finding in found):
                break
            found = within(limit_s, name, check)
            yield from found
        # A store that answers says who needs tmux and a broker.
        answers = not any(finding.code in _STORE_ERRORS for finding in found)
        asked = opened if answers else None
        yield from all_of(
            {
                "tmux": lambda: services.tmux(asked),
                "broker": lambda: services.broker(asked),
                "gateways": lambda: services.gateways(opened),
                "server": lambda: services.server(opened),
            }
        )


def _store_checks(hf: Holdfast, clock: Clock) -> dict[str, Check]:
    """The checks that ask the store alone."""
    # The gates of an embedded store are files, which were checked before it was opened.
    latches: dict[str, Check] = {} if hf.store.embedded else {"gate": lambda: stored.latches(hf)}
    return {
        "schema": lambda: stored.schema(hf),
        "records": lambda: records.records(hf),
        "queues": lambda: records.queues(hf),
        "clock": lambda: stored.clocks(hf, clock),
        "leftovers": lambda: records.leftovers(hf),
        "journal": lambda: records.followers(hf),
        **latches,
        "permissions": lambda: machine.strangers(hf),
    }
