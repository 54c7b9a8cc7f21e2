"""The store: its disk, whether it answers and is understood; and the clocks."""

import glob
import os
import sys
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
from holdfast.runtime.maintenance import all_spaces
from holdfast.stores.sqlite.filesystem import VARIABLE, is_local, type_of
from holdfast.stores.sqlite.wal import blame, gate_path, is_stopped, log_size
from holdfast.system.flock import flock_holder

_FULL_BYTES = 1 << 20
_WRITE_S = 0.8 * DOCTOR_CHECK_S
_SLOW_S = 0.5
_TRIES_MAX = 3
_CHECK_AGAIN_S = 0.1


def store_path(settings: Settings) -> Path | None:
    """The file or folder of an embedded store; None for a database or memory."""
    path = store_url(settings).path
    return None if path is None else path.absolute()


def disk(settings: Settings) -> list[Finding]:
    """Whether the store's file system is local, writable, and has space."""
    path = store_path(settings)
    if path is None:
        return [ok("the store is on no disk of this machine")]
    # The store's folder, or the one it would be made in.
    folder = next(parent for parent in (path, *path.parents) if parent.is_dir())
    kind, room = type_of(folder), os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    if not is_local(kind):
        says = (
            f"{folder} is on a file system of type {kind}, which is not known to be of this "
            "machine alone"
        )
        fix = (
            "use a local disk, or PostgreSQL for several machines (--store postgresql://...); if "
            f"you know that it is as good, set {VARIABLE}={kind}"
        )
    elif room.f_flag & os.ST_RDONLY:
        says = f"{folder} is on a read-only file system"
        fix = (
            "mount it writable (mount -o remount,rw), or choose another place with --store (the "
            f"store is {path})"
        )
    elif free < _FULL_BYTES or (room.f_files and not room.f_favail):
        says, fix = f"{folder} has no room left: {_size(free)}", "free some room there"
    elif free >= DISK_FREE_BYTES_MIN:
        return [ok(f"{folder}: {kind}, {_size(free)} free")]
    else:
        fix = f"free some: {_size(DISK_FREE_BYTES_MIN)} is little already"
        return [warn(f"{folder} has {_size(free)} left", fix)]
    return [fail(says, fix, "store_unavailable")]


def logs(settings: Settings) -> list[Finding]:
    """The size of the logs of SQLite files. A log only grows while a reader has it open: mostly a
    stopped process.
    """
    path = store_path(settings)
    found = []
    for database in _databases(path):
        size = log_size(database)
        if size <= LOG_BYTES_KEPT:
            continue
        who, fix = blame(database)
        says = f"the log of {database} has {_size(size)} and cannot be reset: {who}"
        found.append(
            fail(f"{says}; changes are refused", fix, "store_unavailable")
            if size > LOG_BYTES_MAX
            else warn(says, f"{fix}; beyond {_size(LOG_BYTES_MAX)} changes are refused")
        )
    usual = "none is larger than usual" if path else "the store has none on this machine"
    return found or [ok(usual)]


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
        # A stopped process will not leave by itself; a busy one is seen to leave.
        time.sleep(_CHECK_AGAIN_S)
        held = {gate: pid for gate, pid in held.items() if flock_holder(gate) == pid}
        if held and all(is_stopped(pid) for pid in held.values()):
            break
    return [_held(gate, pid) for gate, pid in held.items()] or [ok("no process blocks writers")]


def _held(gate: Path, pid: int) -> Finding:
    if is_stopped(pid):
        return fail(
            f"process {pid} is stopped inside a transaction and keeps all writers of {gate} out",
            f"continue it (kill -CONT {pid}), or end it (kill -KILL {pid})",
            "lock_timeout",
        )
    return warn(
        f"process {pid} has kept all writers of {gate} out for {GATE_HELD_S:g} s",
        f"look at what it does (`ps {pid}`), and end it if it hangs (kill -KILL {pid})",
    )


def latches(hf: Holdfast) -> list[Finding]:
    """The same on PostgreSQL: a session that has held latches for seconds."""
    found = [
        warn(
            f"session {one.pid} of {one.client} has been inside a transaction for "
            f"{one.seconds:.0f} s ({one.state}), and keeps others from the same records",
            "continue its program if it is stopped, or end the session: SELECT "
            f"pg_terminate_backend({one.pid})",
        )
        for one in hf.store.administration.long_transactions(GATE_HELD_S)
    ]
    return found or [ok("no session keeps others out for long")]


def _databases(path: Path | None) -> list[Path]:
    """The SQLite files of an embedded store that exist."""
    if path is None:
        return []
    if path.is_dir():
        return sorted(path.glob(".holdfast/**/*.sqlite"))
    files = (path, *sorted(path.parent.glob(f"{glob.escape(path.name)}.locks-*.sqlite")))
    return [one for one in files if one.exists()]


def _gates(path: Path) -> list[Path]:
    """The files by which one writer keeps the others out."""
    found = [gate for one in _databases(path) if (gate := gate_path(one)).exists()]
    if path.is_dir():
        for pattern in (".holdfast/**/latch", "*.lock", "*/*.lock"):
            found += sorted(path.glob(pattern))
    return found


def store(hf: Holdfast) -> list[Finding]:
    """Whether the store takes an empty transaction, and how long that takes."""
    try:
        took_s = _fastest_write_s(hf)
    except NotFound as absent:
        path = Path(absent.fields["path"])
        if why := unwritable(path.parent):
            fix = (
                "make its folder writable to this user, or choose another place with --store or "
                "HOLDFAST_STORE"
            )
            says = f"there is none yet, and {path} cannot be made: {why}"
            return [fail(says, fix, "store_unavailable")]
        return [ok("there is none yet: the first command that changes something makes it")]
    except HoldfastError as error:
        return [failed(error)]
    if hf.store.ephemeral:
        return [
            warn(
                "memory: is seen by one process alone and ends with it: it keeps nobody apart",
                "choose another with --store or HOLDFAST_STORE, unless this is a test",
            )
        ]
    took = f"an empty transaction takes {took_s * 1000:.1f} ms"
    if took_s > _SLOW_S:
        return [
            warn(
                f"{hf.store.kind}, slow: {took}",
                "check the disk and other programs that write to it; `holdfast metrics` has the "
                "times",
            )
        ]
    return [ok(f"{hf.store.kind}, writable: {took}")]


def _fastest_write_s(hf: Holdfast) -> float:
    """The fastest of up to three empty transactions, all within `_WRITE_S`. One slow transaction
    may be a stall of the machine, so a slow one is tried again while half of the time is left.
    """
    tries_s: list[float] = []
    while not tries_s or (
        min(tries_s) > _SLOW_S and len(tries_s) < _TRIES_MAX and sum(tries_s) < _WRITE_S / 2
    ):
        started_s = time.perf_counter()
        hf.store.transact(lambda tx: None, scope=[], timeout_s=_WRITE_S - sum(tries_s))  # noqa: ARG005 - it does nothing
        tries_s.append(time.perf_counter() - started_s)
    return min(tries_s)


def schema(hf: Holdfast) -> list[Finding]:
    """Whether this program understands every kind of record, and every agent's record."""
    spaces: list[Space[Any]] = [space for space in all_spaces() if not space.volatile]
    found = []
    for space in spaces:
        try:
            hf.store.read(
                lambda tx, space=space: tx.range(space, limit=1, damaged=[]),  # type: ignore[misc]
                scope=[space],
            )
        except (Unavailable, StoreCorrupt):
            # An error of the store itself is the same for every kind, and is reported once.
            raise
        except HoldfastError as error:
            found.append(failed(error))
    if found:
        return found
    # `holdfast agents list` cannot show these, and exits with their status.
    damaged: Damage = []
    hf.agents.list_agents(limit=sys.maxsize, damaged=damaged)
    if damaged:
        first = failed(damaged[0])
        number = counted(len(damaged), "agent's record", "agents' records")
        return [fail(f"{number} cannot be read: {first.says}", first.fix, first.code)]
    return [ok(f"all {len(spaces)} kinds of records are understood")]


def clocks(hf: Holdfast, clock: Clock) -> Iterator[Finding]:
    """Whether a database's clock agrees with this machine's, and whether the clock was set back or
    forward.
    """
    before = clock.now()
    there = hf.store.read(lambda tx: tx.now, scope=[])
    after = clock.now()
    skew_s = (there - (before + (after - before) / 2)).total_seconds()
    unsure_s = (after - before).total_seconds() / 2
    newest = next(iter(hf.log.tail(1)[0]), None)
    if not hf.store.embedded and abs(skew_s) > CLOCK_SKEW_S + unsure_s:
        way = "ahead of" if skew_s > 0 else "behind"
        yield fail(
            f"the clock of PostgreSQL is {abs(skew_s):.1f} s {way} this machine's",
            "let both follow one time server (chrony, systemd-timesyncd): times that people "
            "compare are off by that much",
            "unavailable",
        )
    elif newest is not None and newest.at > there + timedelta(seconds=CLOCK_SKEW_S):
        ahead_s = (newest.at - there).total_seconds()
        yield warn(
            f"the clock was set back: the journal's newest entry is {ahead_s:.0f} s ahead",
            "set it right; leases that were given before last that much longer, and nothing is "
            "taken from anybody",
        )
    elif (jump := steady_clock(hf.store).peek()) is not None:
        yield warn(
            f"the clock was set forward by {jump.seconds:.0f} s, {jump.ago_s:.0f} s ago",
            "set it back if it is wrong: no lease ends by that for 5 minutes, and nothing is "
            "removed for its age for a day",
        )
    else:
        skew = f"within {abs(skew_s):.2f} s of PostgreSQL's"
        other = "the store's own" if hf.store.embedded else skew
        yield ok(f"this machine's clock is {other}")


def unwritable(folder: Path) -> str:
    """Why a folder, or the one it would be made in, cannot be written; empty when it can."""
    there = next(path for path in (folder, *folder.parents) if path.exists() or path.is_symlink())
    if not there.is_dir():
        return f"{there} is no folder"
    if os.statvfs(there).f_flag & os.ST_RDONLY:
        return "the file system is read-only"
    return "" if os.access(there, os.W_OK | os.X_OK) else "its permissions do not allow it"


def _size(number: int) -> str:
    for unit in ("bytes", "kB", "MB"):
        if number < 1024:
            return f"{number} {unit}"
        number //= 1024
    return f"{number} GB"
