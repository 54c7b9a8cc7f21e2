"""The settings, this machine, and the extras that are needed."""

import os
import re
from collections.abc import Iterator
from importlib import metadata

from holdfast.kernel.settings import Settings
from holdfast.kernel.text import installing
from holdfast.processes.procfs import Procfs
from holdfast.runtime.configuration import store_origin
from holdfast.runtime.doctor.finding import Finding, fail, ok, warn
from holdfast.runtime.maintenance import Upkeep
from holdfast.stores.url import StoreUrl


def settings(found: Settings, *, chosen_by: str | None = None) -> list[Finding]:
    """What the settings mean."""
    # The driver of a database may not be installed, which is a finding of its own.
    store = Upkeep(found).facts()["store"] if StoreUrl(found.store or "").embedded else "PostgreSQL"
    origin = chosen_by or store_origin()
    return [ok(f"understood: {store}, namespace {found.namespace}, chosen by {origin}")]


def machine(found: Settings | None) -> Iterator[Finding]:
    """Whether this machine can be told from others, and its boot from earlier ones."""
    here = Procfs(host_id=found.host_id if found else None).here()
    if here.host_id == os.uname().nodename:
        # Without a machine id its name is used, and containers and clones share names.
        yield warn(
            f"it has no /etc/machine-id, so it is known by its name {here.host_id[:40]} alone",
            "set host_id in holdfast.toml or HOLDFAST_HOST_ID, different on each machine that "
            "shares a store",
        )
    else:
        yield ok(f"host {here.host_id[:40]}, boot {here.boot_id[:8]}, pid namespace {here.pid_ns}")


def extras(found: Settings) -> list[Finding]:
    """Whether the packages that the settings need are installed."""
    needed = {
        StoreUrl(found.store or "").extra: "the store is PostgreSQL",
        "mqtt": "MQTT_BROKER is set" if os.environ.get("MQTT_BROKER") else "",
    }
    lacking = [
        fail(f"{why}, and {', '.join(missing)} is not installed", installing(extra), "unavailable")
        for extra, why in needed.items()
        if extra and why and (missing := not_installed(extra))
    ]
    absent = [extra for extra in ("server", "mqtt", "postgres", "mcp") if not_installed(extra)]
    also = f"; not: {', '.join(absent)}" if absent else ""
    return lacking or [ok(f"all that is needed is installed{also}")]


def not_installed(extra: str) -> list[str]:
    """The packages of an extra that are not installed."""
    try:
        required = metadata.requires("holdfast") or []
    except metadata.PackageNotFoundError:
        # Run from a folder: a missing package is reported when it is used.
        return []
    return [
        name
        for requirement in required
        if re.search(rf"extra == ['\"]{extra}['\"]", requirement)
        and not _installed(name := re.split(r"[\s\[<>=!~;(]", requirement, maxsplit=1)[0])
    ]


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
