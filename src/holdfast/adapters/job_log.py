"""The audit log of jobs: a folder per job, in plain files that outlive the registry.

    <logs>/<job_id>/meta.json        the job as it was registered, without secrets
    <logs>/<job_id>/events.ndjson    a line for each thing that happened, in order
    <logs>/<job_id>/status.json      its status, for a quick look

It follows the journal: each `catch_up` goes on where the last one stopped, in any process.
Promised: one line for each entry of the journal about a job, in order, also when several processes
write and one is killed. Not promised: that it is up to date before somebody reads it. Its failures
are warnings; they break nothing.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import Any

from holdfast.domains.jobs.records import Job, JobStatus, shown
from holdfast.domains.jobs.transitions import as_registered
from holdfast.kernel.clock import render
from holdfast.kernel.errors import (
    Corrupt,
    EnvironmentUnavailable,
    HoldfastError,
    InvalidName,
    InvalidValue,
    LockTimeout,
)
from holdfast.kernel.names import check_job_id
from holdfast.kernel.store import BEGINNING, Cursor, Entry
from holdfast.primitives.journal import Journal, Lag
from holdfast.primitives.log import warn
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

try:
    # Python's own: `hashlib` loads OpenSSL, which takes a short command longer than the log itself.
    if sys.version_info >= (3, 12):
        from _sha2 import sha256
    else:
        from _sha256 import sha256  # type: ignore[import-not-found]
except ImportError:
    from hashlib import sha256

_LOGGER = "holdfast.jobs.log"
_KINDS = {
    "job.registered": "registered",
    "job.status_changed": "status_changed",
    "job.published": "published",
    "job.received": "received",
    "job.late_result": "late_result",
    "job.removed": "removed",
}
_TAIL_BYTES = 256 << 10
"""How much of a log is searched, beyond the length of the new lines, for lines that are there."""

Lookup = Callable[[str], Job | None]
"""Finds a job. It may raise Corrupt: the log has what the journal says, all the same."""


class JobLog:
    """The audit log in one folder, of one store; other stores may share the folder, and even the id
    of a job. Where `beside` is a folder of jobs as files, it also gets each job's events, as
    `<job_id>.events.log`.
    """

    def __init__(
        self, folder: Path, *, store: str, beside: Path | None = None, access: Access = PRIVATE
    ) -> None:
        self.folder = folder
        self._access = access
        self._beside = beside
        # A path may have bytes of any encoding.
        name = sha256(store.encode(errors="surrogateescape")).hexdigest()[:12]
        self._cursor_path = folder / f".cursor-{name}"
        self._warned = ""

    def catch_up(
        self, journal: Journal, lookup: Lookup, *, wait: bool = True, batches: int | None = None
    ) -> str | None:
        """Write the journal's entries that are not here yet, at most so many batches of them.
        Return what went wrong, in words, or None; a failure is logged once until it goes well.

        If another process is writing, this one leaves the work to it or, with `wait`, waits for it
        within a time limit. Never raises for a folder that cannot be written.
        """
        try:
            with self._locked(wait) as mine:
                if mine:
                    self._catch_up(journal, lookup, batches)
        except (OSError, HoldfastError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            why = f"the audit log {self.folder} cannot be written: {reason}"
            if why != self._warned:
                warn(
                    "%s. The job itself is not affected; `holdfast jobs logs --rebuild` writes the "
                    "log again",
                    why,
                    logger=_LOGGER,
                )
            self._warned = why
            return why
        self._warned = ""
        return None

    def lag(self, journal: Journal) -> Lag:
        """How far it is behind the journal."""
        return journal.lag(self._cursor(), lambda entry: entry.kind in _KINDS)

    def rebuild(self, journal: Journal, lookup: Lookup) -> int:
        """Write it again from all that the journal still has; return how many jobs that are. Lines
        that are older than the journal, of another store or another program are kept.

        Raises EnvironmentUnavailable when the folder is not writable. Raises LockTimeout when
        another process does not finish writing there.
        """
        try:
            with self._locked(wait=True):
                found: dict[str, list[Entry]] = {}
                cursor = BEGINNING
                for batch in journal.since():
                    cursor = batch.cursor
                    _group(batch.entries, found)
                for job_id, entries in found.items():
                    self._write_again(job_id, entries, _found(job_id, lookup))
                self._put(self._cursor_path, {"cursor": cursor})
                return len(found)
        except LockTimeout:
            raise
        except OSError as error:
            advice = (
                "choose another folder for the audit log with DELEGATE_JOB_LOGS_DIR or jobs.logs, "
                "or look at what is there"
            )
            why = unusable(self.folder, error, f"{advice} ({error.filename or self.folder})")
            # Of some jobs it may be written already.
            raise EnvironmentUnavailable(
                why.message, path=str(self.folder), outcome="unknown"
            ) from None

    def jobs(self) -> list[str]:
        """The ids of all jobs that are logged here. Skips folders that are no job's."""
        try:
            folders = [path.name for path in self.folder.iterdir() if path.is_dir()]
        except FileNotFoundError:
            return []
        return sorted(name for name in folders if _is_job_id(name))

    def meta(self, job_id: str) -> dict[str, Any] | None:
        """The job as it was registered; None if it is not logged."""
        return self._document(self._home(job_id) / "meta.json")

    def status(self, job_id: str) -> dict[str, Any] | None:
        """The job's status; None if it is not logged. `unknown` where another program wrote a file
        without one.
        """
        found = self._document(self._home(job_id) / "status.json")
        if found is None:
            return None
        status = found.get("status")
        known = status if isinstance(status, str) else "unknown"
        return {**found, "job_id": job_id, "status": known}

    def events(self, job_id: str) -> Iterator[dict[str, Any]]:
        """What happened, oldest first. Skips a line that is no JSON object: a full disk may leave
        one.
        """
        path = self._home(job_id) / "events.ndjson"
        try:
            with open(open_file(path, os.O_RDONLY, self._access, make=False), "rb") as file:
                for line in file:
                    with contextlib.suppress(ValueError):
                        document = json.loads(line)
                        if isinstance(document, dict):
                            yield document
        except FileNotFoundError:
            return

    def _home(self, job_id: str) -> Path:
        return self.folder / check_job_id(job_id)

    @contextmanager
    def _locked(self, wait: bool) -> Iterator[bool]:
        """Be the only writer, for the block; False when another is one and `wait` is not set."""
        make_folder(self.folder, self._access)
        path = self.folder / ".lock"
        if wait:
            with FlockGuard(path, access=self._access):
                yield True
        else:
            with contextlib.closing(FlockContender(path, self._access)) as contender:
                yield contender.try_take()

    def _cursor(self) -> Cursor:
        found = (self._document(self._cursor_path) or {}).get("cursor")
        return found if isinstance(found, str) else BEGINNING

    def _catch_up(self, journal: Journal, lookup: Lookup, batches: int | None) -> None:
        try:
            self._follow(journal, lookup, self._cursor(), batches)
        except InvalidValue:
            # The store is another one, a copy of the one that gave the cursor. Lines that are in
            # the log already are not repeated.
            warn(
                "the journal is another one: audit log %s goes through all of it once",
                self.folder,
                logger=_LOGGER,
            )
            self._follow(journal, lookup, BEGINNING, batches)

    def _follow(
        self, journal: Journal, lookup: Lookup, cursor: Cursor, batches: int | None
    ) -> None:
        # Without a cursor, a line that is here already may be anywhere; with one, only at the end.
        tail_bytes = _TAIL_BYTES if cursor != BEGINNING else None
        for batch in islice(journal.since(cursor), batches):
            for job_id, entries in _group(batch.entries, {}).items():
                self._append(job_id, entries, lookup, tail_bytes)
            self._put(self._cursor_path, {"cursor": batch.cursor})

    def _append(
        self, job_id: str, entries: Sequence[Entry], lookup: Lookup, tail_bytes: int | None
    ) -> None:
        home = self._home(job_id)
        make_one_folder(home, self._access)
        path = home / "events.ndjson"
        # A writer that was killed before it wrote the cursor left lines that must not be repeated.
        # Whole lines are compared: entries of one transaction may share a revision, and so may
        # those of two stores.
        lines = [_encoded(_line(entry)) for entry in entries]
        size = None if tail_bytes is None else tail_bytes + sum(map(len, lines))
        known = _last_lines(path, size, self._access)
        new = [entry for entry, line in zip(entries, lines, strict=True) if line not in known]
        registered = any(entry.kind == "job.registered" for entry in new)
        if registered or not (home / "meta.json").exists():
            self._put_meta(job_id, entries[0], _found(job_id, lookup))
        _append_lines(path, [_line(entry) for entry in new], self._access)
        if self._beside is not None:
            published = [entry.data for entry in new if entry.kind == "job.published"]
            beside = self._beside / f"{check_job_id(job_id)}.events.log"
            _append_lines(beside, published, self._access)
        self._put_status(job_id, new)

    def _write_again(self, job_id: str, entries: Sequence[Entry], job: Job | None) -> None:
        home = self._home(job_id)
        make_one_folder(home, self._access)
        mine = {entry.revision for entry in entries}
        others = [line for line in self.events(job_id) if line.get("revision") not in mine]
        # By time, and those of this journal in its order, whatever a stepped clock says.
        lines = merge(others, map(_line, entries), key=lambda line: str(line.get("timestamp", "")))
        replace_file(home / "events.ndjson", b"".join(map(_encoded, lines)), self._access)
        if job is not None or not (home / "meta.json").exists():
            self._put_meta(job_id, entries[0], job)
        self._put_status(job_id, entries)

    def _put_meta(self, job_id: str, first: Entry, job: Job | None) -> None:
        known = {"job_id": job_id, "created_at": render(first.at), **first.data}
        document = known if job is None else shown(as_registered(job))
        self._put(self._home(job_id) / "meta.json", document)

    def _put_status(self, job_id: str, entries: Sequence[Entry]) -> None:
        kinds = ("job.registered", "job.status_changed", "job.removed")
        last = next((entry for entry in reversed(entries) if entry.kind in kinds), None)
        if last is not None:
            status = last.data.get("to") or last.data.get("status") or JobStatus.PENDING.value
            document = {"job_id": job_id, "status": status, "updated_at": render(last.at)}
            self._put(self._home(job_id) / "status.json", document)

    def _put(self, path: Path, document: dict[str, Any]) -> None:
        text = json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False)
        replace_file(path, text.encode() + b"\n", self._access)

    def _document(self, path: Path) -> dict[str, Any] | None:
        try:
            found = json.loads(read_file(path, self._access))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None


def _found(job_id: str, lookup: Lookup) -> Job | None:
    with contextlib.suppress(Corrupt):
        return lookup(job_id)
    return None


def _group(entries: Iterable[Entry], into: dict[str, list[Entry]]) -> dict[str, list[Entry]]:
    """Add the entries about jobs to those of each job."""
    for entry in entries:
        if entry.kind in _KINDS:
            into.setdefault(entry.subject, []).append(entry)
    return into


def _line(entry: Entry) -> dict[str, Any]:
    kind = _KINDS[entry.kind]
    facts = {"payload": entry.data} if kind in ("published", "received") else entry.data
    about = {"timestamp": render(entry.at), "event": kind, "job_id": entry.subject}
    return {**about, **facts, "actor": entry.actor, "revision": entry.revision}


def _encoded(line: dict[str, Any]) -> bytes:
    return json.dumps(line, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def _append_lines(path: Path, lines: Iterable[dict[str, Any]], access: Access) -> None:
    data = b"".join(map(_encoded, lines))
    if not data:
        return
    fd = open_file(path, os.O_RDWR | os.O_APPEND, access)
    try:
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            # A full disk cut the last line off.
            data = b"\n" + data
        while data:
            # A disk that is almost full takes a part, and says so only at the next write.
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)


def _last_lines(path: Path, size: int | None, access: Access) -> set[bytes]:
    """The lines in the last `size` bytes of a log; all of them without a size."""
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
