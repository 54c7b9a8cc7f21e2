"""The store: where it lies, its room, whether it answers and is understood; and the clocks."""

import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from holdfast.app import Holdfast
from holdfast.configuration import default_store
from holdfast.doctor.finding import Finding, fail, failed, ok, warn
from holdfast.kernel.clock import Clock
from holdfast.kernel.errors import HoldfastError, NotFound, StoreCorrupt, Unavailable
from holdfast.kernel.limits import CLOCK_SKEW_S, DISK_FREE_BYTES_MIN, DOCTOR_CHECK_S
from holdfast.kernel.settings import Settings
from holdfast.kernel.space import Space
from holdfast.kernel.store import Damage
from holdfast.kernel.wording import counted
from holdfast.spaces import all_spaces
from holdfast.stores.opening import sqlite_path
from holdfast.stores.sqlite.filesystem import NETWORK, type_of

_FULL_BYTES = 1 << 20
_WRITE_S = 0.8 * DOCTOR_CHECK_S


def store_path(settings: Settings) -> Path | None:
    """The file or folder of an embedded store; None for a database or memory."""
    kind, _, rest = (settings.store or default_store(os.environ)).partition(":")
    return sqlite_path(rest).absolute() if kind in ("sqlite", "files") else None


def disk(settings: Settings) -> list[Finding]:
    """What the store lies on: no network, not read-only, with room."""
    path = store_path(settings)
    if path is None:
        return [ok("disk", "the store is on no disk of this machine")]
    folder = _nearest(path)
    kind, room = type_of(folder), os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    if kind in NETWORK:
        mend = "use a local disk, or PostgreSQL for several machines (--store postgresql://...)"
        return [fail("disk", f"{folder} is on a network file system ({kind})", mend, "store_unavailable")]
    if room.f_flag & os.ST_RDONLY:
        mend = f"mount it writable (mount -o remount,rw), or choose another place with --store (the store is {path})"
        return [fail("disk", f"{folder} is on a read-only file system", mend, "store_unavailable")]
    if free < _FULL_BYTES or (room.f_files and not room.f_favail):
        return [fail("disk", f"{folder} has no room left: {_size(free)}", "free some room there", "store_unavailable")]
    if free < DISK_FREE_BYTES_MIN:
        return [warn("disk", f"{folder} has {_size(free)} left", f"free some: {_size(DISK_FREE_BYTES_MIN)} is little already")]
    return [ok("disk", f"{folder}: {kind or 'local'}, {_size(free)} free")]


def store(hf: Holdfast) -> list[Finding]:
    """That it is open by now says half; an empty transaction says that it can be written."""
    begun_s = time.perf_counter()
    try:
        hf.store.transact(lambda tx: None, scope=[], timeout_s=_WRITE_S)  # noqa: ARG005 - it does nothing
    except NotFound as absent:
        return [_to_be_made(Path(absent.fields["path"]))]
    except HoldfastError as error:
        return [failed("store", error)]
    if hf.store.kind == "memory":
        mend = "choose another with --store or HOLDFAST_STORE, unless this is a test"
        return [warn("store", "memory: is seen by one process alone and ends with it: it keeps nobody apart", mend)]
    took_ms = (time.perf_counter() - begun_s) * 1000
    if took_ms > 500:
        mend = "look at its disk and at what else writes there; `holdfast metrics` has the times"
        return [warn("store", f"it takes {took_ms:.0f} ms for an empty transaction", mend)]
    return [ok("store", f"{hf.store.kind}, writable: an empty transaction takes {took_ms:.1f} ms")]


def _to_be_made(path: Path) -> Finding:
    if why := unwritable(path.parent):
        mend = "make its folder writable to this user, or choose another place with --store or HOLDFAST_STORE"
        return fail("store", f"there is none yet, and {path} cannot be made: {why}", mend, "store_unavailable")
    return ok("store", "there is none yet: the first command that changes something makes it")


def schema(hf: Holdfast) -> list[Finding]:
    """Whether this program understands every kind of record that is there, and every agent's record."""
    spaces: list[Space[Any]] = [space for space in all_spaces() if not space.volatile]
    too_new = []
    for space in spaces:
        try:
            hf.store.read(lambda tx, space=space: tx.range(space, limit=1, damaged=[]), scope=[space])  # type: ignore[misc]
        except (Unavailable, StoreCorrupt):
            # That is the store's own trouble, the same for every kind: it is told once.
            raise
        except HoldfastError as error:
            too_new.append(failed("schema", error))
    return too_new or _agents(hf) or [ok("schema", f"all {len(spaces)} kinds of records are understood")]


def _agents(hf: Holdfast) -> list[Finding]:
    """The records that `holdfast agents list` cannot show, and ends with this exit status for."""
    damaged: Damage = []
    hf.agents.list_agents(limit=0, damaged=damaged)
    if not damaged:
        return []
    found = failed("schema", damaged[0])
    number = counted(len(damaged), "agent's record", "agents' records")
    return [fail("schema", f"{number} cannot be read: {found.says}", found.mend, found.code)]


def clocks(hf: Holdfast, clock: Clock) -> Iterator[Finding]:
    """A database's clock against this machine's; and whether the journal tells of what is yet to come."""
    before = clock.now()
    there = hf.store.read(lambda tx: tx.now, scope=[])
    after = clock.now()
    skew_s = (there - (before + (after - before) / 2)).total_seconds()
    unsure_s = (after - before).total_seconds() / 2
    newest = next(iter(hf.log.tail(1)[0]), None)
    if hf.store.kind == "postgres" and abs(skew_s) > CLOCK_SKEW_S + unsure_s:
        mend = "let both follow one time server (chrony, systemd-timesyncd): times that people compare are off by that much"
        way = "ahead of" if skew_s > 0 else "behind"
        code = "unavailable"
        yield fail("clock", f"the clock of PostgreSQL is {abs(skew_s):.1f} s {way} this machine's", mend, code)
    elif newest is not None and newest.at > there + timedelta(seconds=CLOCK_SKEW_S):
        ahead_s = (newest.at - there).total_seconds()
        mend = "set it right; leases that were given before last that much longer, and nothing is taken from anybody"
        yield warn("clock", f"the clock was set back: the journal's newest entry is {ahead_s:.0f} s ahead", mend)
    else:
        against = f"within {abs(skew_s):.2f} s of PostgreSQL's" if hf.store.kind == "postgres" else "the store's own"
        yield ok("clock", f"this machine's clock is {against}")


def unwritable(folder: Path) -> str:
    """Why a folder, or the one it would be made in, cannot be written; empty when it can."""
    there = next(path for path in (folder, *folder.parents) if path.exists() or path.is_symlink())
    if not there.is_dir():
        return f"{there} is no folder"
    if os.statvfs(there).f_flag & os.ST_RDONLY:
        return "the file system is read-only"
    return "" if os.access(there, os.W_OK | os.X_OK) else "its permissions do not allow it"


def _nearest(path: Path) -> Path:
    """The folder that is there: the store's, or where it would be made."""
    return next(parent for parent in (path, *path.parents) if parent.is_dir())


def _size(number: int) -> str:
    for unit in ("bytes", "kB", "MB"):
        if number < 1024:
            return f"{number} {unit}"
        number //= 1024
    return f"{number} GB"
