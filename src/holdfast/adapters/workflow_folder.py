"""Workflows in a folder of plain files: the locks and the log that lie beside `workflows.json` there.

Another system may look at the same folder. So its swap lock is our swap lock, and its log tells what happens to swaps. Its
lock around each change is taken by the files store, as the layout says.
"""

from pathlib import Path

from holdfast.access import PRIVATE, Access, make_folder, unusable
from holdfast.adapters.flock import FlockLock
from holdfast.adapters.signal_files import SignalFiles
from holdfast.adapters.swap_log_file import swap_log_file
from holdfast.domains.workflows import Workflows
from holdfast.domains.workflows.wire import SWAP_LOCK, SWAP_LOG
from holdfast.kernel.holder import Processes
from holdfast.kernel.store import Store
from holdfast.primitives.journal import Journal


def workflows_in_folder(
    folder: Path,
    own: Path,
    store: Store,
    journal: Journal,
    processes: Processes,
    *,
    label: str = "",
    within: tuple[str, int] | None = None,
    access: Access = PRIVATE,
) -> Workflows:
    """The workflows of a store whose layout lies in `folder`; `own` is for what that layout has no place for. Makes both.

    Raises StoreUnavailable when they cannot be made.
    """
    for path in (folder, own):
        try:
            make_folder(path, access)
        except OSError as error:
            raise unusable(path, error) from None
    return Workflows(
        store,
        journal,
        processes,
        swap_lock=FlockLock(folder / SWAP_LOCK, access),
        signals=SignalFiles(own / "signals", access),
        mirror=swap_log_file(folder / SWAP_LOG, own, journal, access),
        label=label,
        within=within,
    )
