"""`swap_log.jsonl`: the swap log as a file of JSON lines, for people and programs that read the folder.

The journal_mirror says what is promised of it.
"""

from pathlib import Path
from typing import Any

from holdfast.access import PRIVATE, Access
from holdfast.adapters.journal_mirror import JournalMirror
from holdfast.domains.workflows.swap_log import event_of
from holdfast.kernel import clock
from holdfast.kernel.store import Entry
from holdfast.primitives.journal import Journal


def swap_log_file(path: Path, beside: Path, journal: Journal, access: Access = PRIVATE) -> JournalMirror:
    """The swap log in a file; `beside` is a folder for its mark."""
    return JournalMirror(path, beside / "swap_log.cursor", journal, _line, _warn, access=access)


def _line(entry: Entry) -> dict[str, Any] | None:
    event = event_of(entry)
    if event is None:
        return None
    return {
        "at": clock.render(event.at),
        "event": event.event,
        "recipe": event.recipe,
        "who": event.who,
        "revision": event.revision,
        **{name: value for name, value in event.data.items() if name not in ("at", "event", "recipe", "revision")},
    }


def _warn(path: Path, error: Exception) -> None:
    # Loaded here, since there is mostly nothing to warn of.
    import logging

    logging.getLogger("holdfast.workflows").warning("swap log not written path=%s: %s", path, error)
