"""The store: where it lies, its room, whether it answers and is understood; and the clocks."""

import glob
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from holdfast.kernel.clock import Clock
from holdfast.kernel.errors import HoldfastError, NotFound, StoreCorrupt, Unavailable
from holdfast.kernel.limits import (
    CLOCK_SKEW_S,
    DISK_FREE_BYTES_MIN,
    DOCTOR_CHECK_S,
    GATE_HELD_S,
    LOG_BYTES_KEPT,
    LOG_BYTES_MAX,
)
from holdfast.kernel.settings import Settings
from holdfast.kernel.space import Space
from holdfast.kernel.store import Damage
from holdfast.kernel.text import counted
from holdfast.primitives.steady_clock import steady_clock
from holdfast.runtime.configuration import store_url
from holdfast.runtime.connection import Holdfast
from holdfast.runtime.doctor.finding import Finding, fail, failed, ok, warn
from holdfast.runtime.spaces import all_spaces
from holdfast.stores.sqlite.filesystem import VARIABLE, is_local, type_of
from holdfast.stores.sqlite.gate import flock_holder
from holdfast.stores.sqlite.wal import blame, gate_path, is_stopped, log_size

_FULL_BYTES = 1 << 20
_WRITE_S = 0.8 * DOCTOR_CHECK_S
_SLOW_S = 0.5
_TRIES_MAX = 3
_LOOK_AGAIN_S = 0.1


def store_path(settings: Settings) -> Path | None:
    """The file or folder of an embedded store; None for a database or memory."""
    path = store_url(settings).path
    return None if path is None else path.absolute()


def disk(settings: Settings) -> list[Finding]:
    """What the store lies on: no network, not read-only, with room."""
    path = store_path(settings)
    if path is None:
        return [ok("disk", "the store is on no disk of this machine")]
    folder = _nearest(path)
    kind, room = type_of(folder), os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    if not is_local(kind):
        mend = (
            "use a local disk, or PostgreSQL for several machines (--store postgresql://...); if "
            "you know that it is as good, "
            f"set {VARIABLE}={kind}"
        )
        says = (
            f"{folder} is on a file system of type {kind}, which is not known to be of this "
            "machine alone"
        )
        return [fail("disk", says, mend, "store_unavailable")]
    if room.f_flag & os.ST_RDONLY:
        mend = (
            "mount it writable (mount -o remount,rw), or choose another place with --store (the "
            f"store is {path})"
        )
        return [fail("disk", f"{folder} is on a read-only file system", mend, "store_unavailable")]
    if free < _FULL_BYTES or (room.f_files and not room.f_favail):
        return [
            fail(
                "disk",
                f"{folder} has no room left: {_size(free)}",
                "free some room there",
                "store_unavailable",
            )
        ]
    if free < DISK_FREE_BYTES_MIN:
        return [
            warn(
                "disk",
                f"{folder} has {_size(free)} left",
                f"free some: {_size(DISK_FREE_BYTES_MIN)} is little already",
            )
        ]
    return [ok("disk", f"{folder}: {kind}, {_size(free)} free")]


def logs(settings: Settings) -> list[Finding]:
    """How long the logs of SQLite files are. One that only grows has a reader in its way, mostly a
    stopped one.
    """
    path = store_path(settings)
    found = [finding for database in _databases(path) if (finding := _log(database)) is not None]
    return found or [
        ok(
            "log",
            "none has grown beyond what is usual"
            if path
            else "the store keeps none on this machine",
        )
    ]


def _log(database: Path) -> Finding | None:
    size = log_size(database)
    if size <= LOG_BYTES_KEPT:
        return None
    who, mend = blame(database)
    says = f"the log of {database} has {_size(size)} and cannot be begun anew: {who}"
    if size > LOG_BYTES_MAX:
        return fail("log", f"{says}; changes are refused", mend, "store_unavailable")
    return warn("log", says, f"{mend}; beyond {_size(LOG_BYTES_MAX)} changes are refused")


def gates(settings: Settings) -> list[Finding]:
    """Whether a process has been inside a transaction for seconds, so that nobody else can change
    anything.
    """
    path = store_path(settings)
    if path is None:
        return []
    held = {
        gate: pid
        for gate in _gates(path)
        if (pid := flock_holder(gate)) is not None and pid != os.getpid()
    }
    end_s = time.monotonic() + GATE_HELD_S
    while held and time.monotonic() < end_s:
        # One that is stopped need not be looked at for long; a busy one is seen to leave.
        time.sleep(_LOOK_AGAIN_S)
        held = {gate: pid for gate, pid in held.items() if flock_holder(gate) == pid}
        if held and all(is_stopped(pid) for pid in held.values()):
            break
    return [_held(gate, pid) for gate, pid in held.items()] or [
        ok("gate", "nobody keeps writers out for long")
    ]


def latches(hf: Holdfast) -> list[Finding]:
    """The same on PostgreSQL: a session that has held latches for seconds."""
    found = [
        warn(
            "gate",
            f"session {one.pid} of {one.client} has been inside a transaction for "
            f"{one.seconds:.0f} s ({one.state}), and keeps "
            "others from the same records",
            "continue its program if it is stopped, or end the session: SELECT "
            f"pg_terminate_backend({one.pid})",
        )
        for one in hf.store.administration.long_transactions(GATE_HELD_S)
    ]
    return found or [ok("gate", "no session keeps others out for long")]


def _held(gate: Path, pid: int) -> Finding:
    if is_stopped(pid):
        says = f"process {pid} is stopped inside a transaction and keeps all writers of {gate} out"
        return fail(
            "gate",
            says,
            f"let it go on (kill -CONT {pid}), or end it (kill -KILL {pid})",
            "lock_timeout",
        )
    says = f"process {pid} has kept all writers of {gate} out for {GATE_HELD_S:g} s"
    return warn(
        "gate",
        says,
        f"look at what it does (`ps {pid}`), and end it if it hangs (kill -KILL {pid})",
    )


def _databases(path: Path | None) -> list[Path]:
    """The SQLite files of an embedded store that are there."""
    if path is None:
        return []
    if path.is_dir():
        return sorted(path.glob(".holdfast/**/*.sqlite"))
    return [
        one
        for one in (path, *sorted(path.parent.glob(f"{glob.escape(path.name)}.locks-*.sqlite")))
        if one.exists()
    ]


def _gates(path: Path | None) -> list[Path]:
    """The files by which one writer keeps the others out."""
    beside = [gate for one in _databases(path) if (gate := gate_path(one)).exists()]
    if path is None or not path.is_dir():
        return beside
    return [
        *beside,
        *sorted(path.glob(".holdfast/**/latch")),
        *sorted(path.glob("*.lock")),
        *sorted(path.glob("*/*.lock")),
    ]


def store(hf: Holdfast) -> list[Finding]:
    """Check that the store takes a write, by an empty transaction, and how long that takes."""
    try:
        took_s = _fastest_write_s(hf)
    except NotFound as absent:
        return [_to_be_made(Path(absent.fields["path"]))]
    except HoldfastError as error:
        return [failed("store", error)]
    if hf.store.ephemeral:
        mend = "choose another with --store or HOLDFAST_STORE, unless this is a test"
        return [
            warn(
                "store",
                "memory: is seen by one process alone and ends with it: it keeps nobody apart",
                mend,
            )
        ]
    took = f"an empty transaction takes {took_s * 1000:.1f} ms"
    if took_s > _SLOW_S:
        mend = (
            "look at the disk and at other programs that write to it; `holdfast metrics` has the "
            "times"
        )
        return [warn("store", f"{hf.store.kind}, slow: {took}", mend)]
    return [ok("store", f"{hf.store.kind}, writable: {took}")]


def _fastest_write_s(hf: Holdfast) -> float:
    """The fastest of up to three empty transactions, all within `_WRITE_S`. One slow transaction
    may be a stall of the machine, so a slow one is tried again while half of the time is left.
    """
    tries_s: list[float] = []
    while not tries_s or (
        min(tries_s) > _SLOW_S and len(tries_s) < _TRIES_MAX and sum(tries_s) < _WRITE_S / 2
    ):
        begun_s = time.perf_counter()
        hf.store.transact(lambda tx: None, scope=[], timeout_s=_WRITE_S - sum(tries_s))  # noqa: ARG005 - it does nothing
        tries_s.append(time.perf_counter() - begun_s)
    return min(tries_s)


def _to_be_made(path: Path) -> Finding:
    if why := unwritable(path.parent):
        mend = (
            "make its folder writable to this user, or choose another place with --store or "
            "HOLDFAST_STORE"
        )
        return fail(
            "store",
            f"there is none yet, and {path} cannot be made: {why}",
            mend,
            "store_unavailable",
        )
    return ok("store", "there is none yet: the first command that changes something makes it")


def schema(hf: Holdfast) -> list[Finding]:
    """Whether this program understands every kind of record that is there, and every agent's
    record.
    """
    spaces: list[Space[Any]] = [space for space in all_spaces() if not space.volatile]
    too_new = []
    for space in spaces:
        try:
            hf.store.read(
                lambda tx, space=space: tx.range(space, limit=1, damaged=[]),  # type: ignore[misc]
                scope=[space],
            )
        except (Unavailable, StoreCorrupt):
            # That is the store's own trouble, the same for every kind: it is told once.
            raise
        except HoldfastError as error:
            too_new.append(failed("schema", error))
    return (
        too_new
        or _agents(hf)
        or [ok("schema", f"all {len(spaces)} kinds of records are understood")]
    )


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
    """A database's clock against this machine's; and whether the journal tells of what is yet to
    come.
    """
    before = clock.now()
    there = hf.store.read(lambda tx: tx.now, scope=[])
    after = clock.now()
    skew_s = (there - (before + (after - before) / 2)).total_seconds()
    unsure_s = (after - before).total_seconds() / 2
    newest = next(iter(hf.log.tail(1)[0]), None)
    if not hf.store.embedded and abs(skew_s) > CLOCK_SKEW_S + unsure_s:
        mend = (
            "let both follow one time server (chrony, systemd-timesyncd): times that people "
            "compare are off by that much"
        )
        way = "ahead of" if skew_s > 0 else "behind"
        code = "unavailable"
        yield fail(
            "clock",
            f"the clock of PostgreSQL is {abs(skew_s):.1f} s {way} this machine's",
            mend,
            code,
        )
    elif newest is not None and newest.at > there + timedelta(seconds=CLOCK_SKEW_S):
        ahead_s = (newest.at - there).total_seconds()
        mend = (
            "set it right; leases that were given before last that much longer, and nothing is "
            "taken from anybody"
        )
        yield warn(
            "clock",
            f"the clock was set back: the journal's newest entry is {ahead_s:.0f} s ahead",
            mend,
        )
    elif (jump := steady_clock(hf.store).peek()) is not None:
        says = f"the clock was set forward by {jump.seconds:.0f} s, {jump.ago_s:.0f} s ago"
        mend = (
            "set it back if it is wrong: no lease ends by that for 5 minutes, and nothing is "
            "removed for its age for a day"
        )
        yield warn("clock", says, mend)
    else:
        against = (
            "the store's own"
            if hf.store.embedded
            else f"within {abs(skew_s):.2f} s of PostgreSQL's"
        )
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
