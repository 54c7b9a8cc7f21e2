"""The registry's transaction log: its part of the journal once more, as lines of JSON in a file that other tools read.

    {"timestamp": "2026-01-31T12:00:00.000000Z", "operation": "host.registered", "details": {"subject": "h1", ...}}

The journal_mirror says what is promised of it. Its mark lies beside it, as `.cursor`.
"""

import logging
from pathlib import Path
from typing import Any

from holdfast.access import PRIVATE, Access
from holdfast.adapters.journal_mirror import JournalMirror
from holdfast.folder_walk import resolve
from holdfast.kernel import clock
from holdfast.kernel.store import Entry
from holdfast.primitives.journal import Journal

TOLD = ("host.", "host_lease.", "neighbor_lease.", "lock.")
"""How the kinds of entries begin that are the registry's."""


def transaction_log(path: Path, journal: Journal, logger: logging.Logger, access: Access = PRIVATE) -> JournalMirror:
    """The log in a file, beginning with what happens from now on if it is new. A path that is a link is followed, here once."""

    def warn(behind: Path, error: Exception) -> None:
        logger.warning("transaction log behind path=%s: %s; it goes on with the next change", behind, error)

    path = Path(resolve(path))
    return JournalMirror(path, path.with_name(path.name + ".cursor"), journal, _line, warn, from_now=True, access=access)


def _line(entry: Entry) -> dict[str, Any] | None:
    if not entry.kind.startswith(TOLD):
        return None
    details = {"subject": entry.subject, "actor": entry.actor, "revision": entry.revision, **entry.data}
    return {"timestamp": clock.render(entry.at), "operation": entry.kind, "details": details}
