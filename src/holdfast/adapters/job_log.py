"""The audit log of jobs: a folder a job, in plain files that outlive the registry.

    <logs>/<job_id>/meta.json        the job as it was registered, without secrets
    <logs>/<job_id>/events.ndjson    a line for each thing that happened, in order
    <logs>/<job_id>/status.json      its status, for a quick look

It follows the journal: whoever brings it up to date begins where the last one stopped. Promised: a
line for each entry of the journal about a job, once and in order, also when several processes write
and one is killed. Not promised: that it is up to date before somebody looks. Its failures are
warnings; they break nothing.
"""

import contextlib
import heapq
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from holdfast.domains.jobs.records import Job, JobStatus, shown
from holdfast.domains.jobs.transitions import as_registered
from holdfast.kernel.clock import render
from holdfast.kernel.errors import (
    HoldfastError,
    InvalidName,
    InvalidValue,
    LockTimeout,
    StoreUnavailable,
)
from holdfast.kernel.names import check_job_id
from holdfast.kernel.store import BEGINNING, Cursor, Entry
from holdfast.primitives.journal import Journal, Lag
from holdfast.system.access import (
    PRIVATE,
    Access,
    make_folder,
    make_one_folder,
    open_file,
    read_file,
    replace_file,
    unusable,
)
from holdfast.system.flock import FlockContender, FlockGuard

_log = logging.getLogger("holdfast.jobs.log")
_KINDS = {
    "job.registered": "registered",
    "job.status_changed": "status_changed",
    "job.published": "published",
    "job.received": "received",
    "job.late_result": "late_result",
    "job.removed": "removed",
}
_TAIL_BYTES = 256 << 10
"""How much of a log is looked at, beyond the length of what is to be added, for lines that are
there already.
"""

Lookup = Callable[[str], Job | None]


class JobLog:
    """The audit log in one folder, of one store; other stores may share the folder, and even the id
    of a job.

    Where `beside` is a folder of jobs as files, each job's events are told there as well, as
    `<job_id>.events.log`.
    """

    def __init__(
        self, folder: Path, *, store: str, beside: Path | None = None, access: Access = PRIVATE
    ) -> None:
        self.folder = folder
        self._access = access
        self._beside = beside
        self._place = folder / f".cursor-{sha256(store.encode()).hexdigest()[:12]}"

    def catch_up(self, journal: Journal, lookup: Lookup, *, wait: bool = True) -> str | None:
        """Write what the journal tells that is not here yet; return what went wrong, in words, or
        None.

        Without `wait` it leaves the work to whoever is at it; with it, it waits for that one within
        a time limit. Never raises for a folder that cannot be written.
        """
        try:
            with self._turn(wait) as mine:
                if mine:
                    self._catch_up(journal, lookup)
        except (OSError, HoldfastError, ValueError) as error:
            why = (
                f"the audit log {self.folder} cannot be written: "
                f"{getattr(error, 'strerror', None) or error}"
            )
            _log.warning("%s", why)
            return why
        return None

    def lag(self, journal: Journal) -> Lag:
        """How far it is behind the journal."""
        return journal.lag(self._cursor(), lambda entry: entry.kind in _KINDS)

    def rebuild(self, journal: Journal, lookup: Lookup) -> int:
        """Write it again from all that the journal still has, and return how many jobs that are.

        Lines that are older than the journal, another store's or another program's are kept. Raises
        StoreUnavailable when the folder cannot be written, LockTimeout when another does not end
        writing there.
        """
        try:
            return self._rebuild(journal, lookup)
        except LockTimeout:
            raise
        except OSError as error:
            advice = (
                "choose another folder for the audit log with DELEGATE_JOB_LOGS_DIR or jobs.logs, "
                "or look at what is there"
            )
            told = unusable(self.folder, error, f"{advice} ({error.filename or self.folder})")
            # Of some jobs it may be written already.
            raise StoreUnavailable(told.message, path=str(self.folder), outcome="unknown") from None

    def _rebuild(self, journal: Journal, lookup: Lookup) -> int:
        with self._turn(True):
            seen: dict[str, list[Entry]] = {}
            cursor = BEGINNING
            for batch in journal.since():
                cursor = batch.cursor
                for entry in batch.entries:
                    if entry.kind in _KINDS:
                        seen.setdefault(entry.subject, []).append(entry)
            for job_id, entries in seen.items():
                self._again(job_id, entries, lookup(job_id))
            self._put(self._place, {"cursor": cursor})
            return len(seen)

    def jobs(self) -> list[str]:
        """The ids of all jobs that are logged here. Folders that are no job's are passed over."""
        try:
            return sorted(
                path.name
                for path in self.folder.iterdir()
                if path.is_dir() and _is_job_id(path.name)
            )
        except FileNotFoundError:
            return []

    def meta(self, job_id: str) -> dict[str, Any] | None:
        """The job as it was registered; None if it is not logged."""
        return self._document(self._home(job_id) / "meta.json")

    def status(self, job_id: str) -> dict[str, Any] | None:
        """The job's status; None if it is not logged. Of a file that another program wrote without
        one it is `unknown`.
        """
        found = self._document(self._home(job_id) / "status.json")
        if found is None:
            return None
        said = found.get("status")
        return {**found, "job_id": job_id, "status": said if isinstance(said, str) else "unknown"}

    def events(self, job_id: str) -> Iterator[dict[str, Any]]:
        """What happened, oldest first. A line that is no JSON object, as a full disk may leave one,
        is passed over.
        """
        try:
            with open(
                open_file(self._events(job_id), os.O_RDONLY, self._access, make=False), "rb"
            ) as file:
                for line in file:
                    with contextlib.suppress(ValueError):
                        told = json.loads(line)
                        if isinstance(told, dict):
                            yield told
        except FileNotFoundError:
            return

    def _home(self, job_id: str) -> Path:
        return self.folder / check_job_id(job_id)

    def _events(self, job_id: str) -> Path:
        return self._home(job_id) / "events.ndjson"

    @contextmanager
    def _turn(self, wait: bool) -> Iterator[bool]:
        """Be the only one to write, for the block; False when another is and `wait` is not
        wanted.
        """
        make_folder(self.folder, self._access)
        path = self.folder / ".lock"
        if wait:
            with FlockGuard(path, access=self._access):
                yield True
        else:
            with contextlib.closing(FlockContender(path, self._access)) as contender:
                yield contender.try_take()

    def _cursor(self) -> Cursor:
        found = (self._document(self._place) or {}).get("cursor")
        return found if isinstance(found, str) else BEGINNING

    def _catch_up(self, journal: Journal, lookup: Lookup) -> None:
        try:
            self._follow(journal, lookup, self._cursor())
        except InvalidValue:
            # The store is another now, a copy of the one that gave the cursor. What is in the log
            # already is not repeated.
            _log.warning(
                "the journal is another one: audit log %s goes through all of it once", self.folder
            )
            self._follow(journal, lookup, BEGINNING)

    def _follow(self, journal: Journal, lookup: Lookup, cursor: Cursor) -> None:
        # Without a place, what is here already may be anywhere; with one, only at the end.
        looked_at = _TAIL_BYTES if cursor != BEGINNING else None
        for batch in journal.since(cursor):
            grouped: dict[str, list[Entry]] = {}
            for entry in batch.entries:
                if entry.kind in _KINDS:
                    grouped.setdefault(entry.subject, []).append(entry)
            for job_id, entries in grouped.items():
                self._append(job_id, entries, lookup, looked_at)
            self._put(self._place, {"cursor": batch.cursor})

    def _append(
        self, job_id: str, entries: list[Entry], lookup: Lookup, looked_at: int | None
    ) -> None:
        home = self._home(job_id)
        make_one_folder(home, self._access)
        path = self._events(job_id)
        # What one wrote that was killed before it wrote the cursor is not to be repeated. Whole
        # lines are compared: several entries of one transaction may share a revision, and so may
        # those of two stores.
        lines = [_encoded(_line(entry)) for entry in entries]
        known = _known(
            path, None if looked_at is None else looked_at + sum(map(len, lines)), self._access
        )
        new = [entry for entry, line in zip(entries, lines, strict=True) if line not in known]
        if (
            any(entry.kind == "job.registered" for entry in new)
            or not (home / "meta.json").exists()
        ):
            self._meta(job_id, entries[0], lookup(job_id))
        _write_lines(path, [_line(entry) for entry in new], self._access)
        self._tell_beside(job_id, new)
        self._status(home, job_id, new)

    def _tell_beside(self, job_id: str, entries: Iterable[Entry]) -> None:
        if self._beside is not None:
            told = [entry.data for entry in entries if entry.kind == "job.published"]
            _write_lines(self._beside / f"{check_job_id(job_id)}.events.log", told, self._access)

    def _again(self, job_id: str, entries: list[Entry], job: Job | None) -> None:
        home = self._home(job_id)
        make_one_folder(home, self._access)
        mine = {entry.revision for entry in entries}
        others = [line for line in self.events(job_id) if line.get("revision") not in mine]
        # By time, and those of this journal in its order, whatever a stepped clock says.
        lines = heapq.merge(others, map(_line, entries), key=_moment)
        replace_file(self._events(job_id), b"".join(map(_encoded, lines)), self._access)
        if job is not None or not (home / "meta.json").exists():
            self._meta(job_id, entries[0], job)
        self._status(home, job_id, entries)

    def _meta(self, job_id: str, entry: Entry, job: Job | None) -> None:
        known = {"job_id": job_id, "created_at": render(entry.at), **entry.data}
        self._put(
            self._home(job_id) / "meta.json", known if job is None else shown(as_registered(job))
        )

    def _status(self, home: Path, job_id: str, entries: Iterable[Entry]) -> None:
        for entry in reversed(list(entries)):
            if entry.kind in ("job.registered", "job.status_changed", "job.removed"):
                status = entry.data.get("to") or entry.data.get("status") or JobStatus.PENDING.value
                self._put(
                    home / "status.json",
                    {"job_id": job_id, "status": status, "updated_at": render(entry.at)},
                )
                return

    def _put(self, path: Path, document: dict[str, Any]) -> None:
        content = (
            json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False).encode() + b"\n"
        )
        replace_file(path, content, self._access)

    def _document(self, path: Path) -> dict[str, Any] | None:
        try:
            found = json.loads(read_file(path, self._access))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None


def _line(entry: Entry) -> dict[str, Any]:
    kind = _KINDS[entry.kind]
    facts = {"payload": entry.data} if kind in ("published", "received") else entry.data
    about = {"timestamp": render(entry.at), "event": kind, "job_id": entry.subject}
    return {**about, **facts, "actor": entry.actor, "revision": entry.revision}


def _encoded(line: dict[str, Any]) -> bytes:
    return json.dumps(line, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def _write_lines(path: Path, told: Iterable[dict[str, Any]], access: Access) -> None:
    """Append a line for each, in one write."""
    lines = b"".join(_encoded(line) for line in told)
    if not lines:
        return
    fd = open_file(path, os.O_RDWR | os.O_APPEND, access)
    with os.fdopen(fd, "r+b", buffering=0) as file:
        if _torn(file.fileno()):
            lines = b"\n" + lines
        while lines:
            # A disk that is almost full takes a part, and says so only when it is asked again.
            lines = lines[file.write(lines) or 0 :]


def _torn(fd: int) -> bool:
    """Does the file end within a line, as a full disk leaves it?"""
    size = os.fstat(fd).st_size
    return size > 0 and os.pread(fd, 1, size - 1) != b"\n"


def _known(path: Path, size: int | None, access: Access) -> set[bytes]:
    """The lines at the end of a log, of so many bytes; all of them without a size."""
    try:
        with open(open_file(path, os.O_RDONLY, access, make=False), "rb") as file:
            if size is not None:
                file.seek(max(os.fstat(file.fileno()).st_size - size, 0))
            return set(file.read().splitlines(keepends=True))
    except FileNotFoundError:
        return set()


def _is_job_id(name: str) -> bool:
    try:
        check_job_id(name)
    except InvalidName:
        return False
    return True


def _moment(line: dict[str, Any]) -> str:
    return str(line.get("timestamp", ""))
