"""The audit log of jobs: a folder a job, in plain files that outlive the registry.

    <logs>/<job_id>/meta.json        the job as it was registered, without secrets
    <logs>/<job_id>/events.ndjson    a line for each thing that happened, in order
    <logs>/<job_id>/status.json      its status, for a quick look

It follows the journal: whoever brings it up to date begins where the last one stopped. Promised: a line for each entry of the
journal about a job, once and in order, also when several processes write and one is killed. Not promised: that it is up to
date before somebody looks. Its failures are warnings; they break nothing.
"""

import contextlib
import fcntl
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from holdfast.domains.jobs.record import Job, JobStatus, shown
from holdfast.domains.jobs.steps import as_registered
from holdfast.kernel.clock import render
from holdfast.kernel.errors import HoldfastError
from holdfast.kernel.names import check_job_id
from holdfast.kernel.store import BEGINNING, Cursor, Entry
from holdfast.primitives.journal import Journal, Lag

_log = logging.getLogger("holdfast.jobs.log")
_KINDS = {
    "job.registered": "registered",
    "job.status_changed": "status_changed",
    "job.published": "published",
    "job.received": "received",
}
_TAIL_BYTES = 256 << 10
"""More than the longest line."""

Lookup = Callable[[str], Job | None]


class JobLog:
    """The audit log in one folder, of one store; other stores may share the folder.

    Where `beside` is a folder of jobs as files, each job's events are told there as well, as `<job_id>.events.log`.
    """

    def __init__(self, folder: Path, *, store: str, beside: Path | None = None) -> None:
        self.folder = folder
        self._beside = beside
        self._place = folder / f".cursor-{sha256(store.encode()).hexdigest()[:12]}"

    def catch_up(self, journal: Journal, lookup: Lookup, *, wait: bool = True) -> str | None:
        """Write what the journal tells that is not here yet; return what went wrong, in words, or None.

        Without `wait` it leaves the work to whoever is at it. Never raises for a folder that cannot be written.
        """
        try:
            with self._turn(wait) as mine:
                if mine:
                    self._follow(journal, lookup, self._cursor())
        except (OSError, HoldfastError, ValueError) as error:
            why = f"the audit log {self.folder} cannot be written: {getattr(error, 'strerror', None) or error}"
            _log.warning("%s", why)
            return why
        return None

    def lag(self, journal: Journal) -> Lag:
        """How far it is behind the journal."""
        return journal.lag(self._cursor(), lambda entry: entry.kind in _KINDS)

    def rebuild(self, journal: Journal, lookup: Lookup) -> int:
        """Write it again from all that the journal still has, and return how many jobs that are.

        Lines that are older than the journal are kept. Raises OSError when the folder cannot be written.
        """
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
        """The ids of all jobs that are logged here."""
        try:
            return sorted(path.name for path in self.folder.iterdir() if path.is_dir() and not path.name.startswith("."))
        except FileNotFoundError:
            return []

    def meta(self, job_id: str) -> dict[str, Any] | None:
        """The job as it was registered; None if it is not logged."""
        return _document(self._home(job_id) / "meta.json")

    def status(self, job_id: str) -> dict[str, Any] | None:
        """The job's status; None if it is not logged."""
        return _document(self._home(job_id) / "status.json")

    def events(self, job_id: str) -> Iterator[dict[str, Any]]:
        """What happened, oldest first. A line that is no JSON, as a full disk may leave one, is passed over."""
        try:
            with (self._home(job_id) / "events.ndjson").open("rb") as file:
                for line in file:
                    with contextlib.suppress(ValueError):
                        yield json.loads(line)
        except FileNotFoundError:
            return

    def _home(self, job_id: str) -> Path:
        return self.folder / check_job_id(job_id)

    @contextmanager
    def _turn(self, wait: bool) -> Iterator[bool]:
        """Be the only one to write, for the block; False when another is and `wait` is not wanted."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield _locked(fd, wait)
        finally:
            os.close(fd)

    def _cursor(self) -> Cursor:
        found = (_document(self._place) or {}).get("cursor")
        return found if isinstance(found, str) else BEGINNING

    def _follow(self, journal: Journal, lookup: Lookup, cursor: Cursor) -> None:
        for batch in journal.since(cursor):
            grouped: dict[str, list[Entry]] = {}
            for entry in batch.entries:
                if entry.kind in _KINDS:
                    grouped.setdefault(entry.subject, []).append(entry)
            for job_id, entries in grouped.items():
                self._append(job_id, entries, lookup)
            self._put(self._place, {"cursor": batch.cursor})

    def _append(self, job_id: str, entries: list[Entry], lookup: Lookup) -> None:
        home = self._home(job_id)
        home.mkdir(mode=0o700, exist_ok=True)
        path = home / "events.ndjson"
        # One that was killed after this and before the cursor was written is not to be repeated.
        last = _last_revision(path)
        new = [entry for entry in entries if entry.revision > last]
        if any(entry.kind == "job.registered" for entry in new) or not (home / "meta.json").exists():
            self._meta(job_id, entries[0], lookup(job_id))
        _write_lines(path, [_line(entry) for entry in new])
        self._tell_beside(job_id, new)
        self._status(home, job_id, new)

    def _tell_beside(self, job_id: str, entries: Iterable[Entry]) -> None:
        if self._beside is not None:
            told = [entry.data for entry in entries if entry.kind == "job.published"]
            _write_lines(self._beside / f"{check_job_id(job_id)}.events.log", told)

    def _again(self, job_id: str, entries: list[Entry], job: Job | None) -> None:
        home = self._home(job_id)
        home.mkdir(mode=0o700, exist_ok=True)
        path = home / "events.ndjson"
        first = entries[0].revision
        older = [line for line in self.events(job_id) if isinstance(line.get("revision"), int) and line["revision"] < first]
        fd, temporary = tempfile.mkstemp(dir=home)
        os.close(fd)
        _write_lines(Path(temporary), [*older, *(_line(entry) for entry in entries)])
        os.replace(temporary, path)
        if job is not None or not (home / "meta.json").exists():
            self._meta(job_id, entries[0], job)
        self._status(home, job_id, entries)

    def _meta(self, job_id: str, entry: Entry, job: Job | None) -> None:
        known = {"job_id": job_id, "created_at": render(entry.at), **entry.data}
        self._put(self._home(job_id) / "meta.json", known if job is None else shown(as_registered(job)))

    def _status(self, home: Path, job_id: str, entries: Iterable[Entry]) -> None:
        for entry in reversed(list(entries)):
            if entry.kind in ("job.registered", "job.status_changed"):
                status = entry.data.get("to", JobStatus.PENDING.value)
                self._put(home / "status.json", {"job_id": job_id, "status": status, "updated_at": render(entry.at)})
                return

    def _put(self, path: Path, document: dict[str, Any]) -> None:
        """Replace a small file whole."""
        fd, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=2, sort_keys=True, ensure_ascii=False)
            file.write("\n")
        os.replace(temporary, path)


def _locked(fd: int, wait: bool) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def _line(entry: Entry) -> dict[str, Any]:
    kind = _KINDS[entry.kind]
    facts = {"payload": entry.data} if kind in ("published", "received") else entry.data
    about = {"timestamp": render(entry.at), "event": kind, "job_id": entry.subject}
    return {**about, **facts, "actor": entry.actor, "revision": entry.revision}


def _encoded(line: dict[str, Any]) -> bytes:
    return json.dumps(line, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def _write_lines(path: Path, told: Iterable[dict[str, Any]]) -> None:
    """Append a line for each, in one write."""
    lines = b"".join(_encoded(line) for line in told)
    if not lines:
        return
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_APPEND, 0o600)
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


def _last_revision(path: Path) -> int:
    """The revision of the last whole line."""
    try:
        with path.open("rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - _TAIL_BYTES, 0))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return 0
    for line in reversed(lines):
        with contextlib.suppress(ValueError, TypeError, KeyError):
            return int(json.loads(line)["revision"])
    return 0


def _document(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
