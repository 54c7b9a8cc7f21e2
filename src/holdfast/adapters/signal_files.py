"""Signal files on this machine's disk, and the workflows of a folder of plain files.

A signal file names the registration for which it was made, so that only our own are removed. Each
folder on its path is opened without following links. The file appears whole, and never replaces
another.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from holdfast.adapters.durable_write import make_whole
from holdfast.domains.workflows import Workflows
from holdfast.domains.workflows.ports import SwapLogMirror
from holdfast.domains.workflows.wire import SWAP_LOCK
from holdfast.kernel.codec import Plain, to_json
from holdfast.kernel.errors import InvalidValue, StoreUnavailable
from holdfast.kernel.holder import Processes
from holdfast.kernel.limits import SIGNAL_BYTES_MAX, SIGNAL_PATH_BYTES_MAX
from holdfast.kernel.store import Store
from holdfast.primitives.journal import Journal
from holdfast.system.access import PRIVATE, Access, make_folder, unusable
from holdfast.system.flock import FlockLock
from holdfast.system.folder_walk import resolve

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Note(Plain, frozen=True, kw_only=True):
    """The content of a signal file: the workflow, its registration and the swap that asks."""

    holdfast_preempt: str
    token: int
    swap: int = 0


class SignalFiles:
    """The signal files of this machine, as the port `Signals` says. `folder` is for those whose
    owners chose no path; it is made when needed.
    """

    def __init__(self, folder: Path, access: Access = PRIVATE) -> None:
        self._access = access
        self._folder = Path(resolve(folder))

    def path_of(self, name: str, token: int) -> str:
        return str(self._folder / f"{name}-{token}.preempt")

    def checked(self, path: str, name: str) -> str:
        if (
            not isinstance(path, str)
            or "\0" in path
            or not os.path.isabs(path)
            or os.path.basename(path) in ("", ".", "..")
        ):
            raise _unfit(path, "it is not the absolute path of a file")
        resolved = os.path.join(resolve(os.path.dirname(path)), os.path.basename(path))
        if len(os.fsencode(resolved)) > SIGNAL_PATH_BYTES_MAX:
            raise _unfit(path, f"it is longer than {SIGNAL_PATH_BYTES_MAX} bytes")
        if not os.path.isdir(os.path.dirname(resolved)):
            raise _unfit(path, "its folder does not exist")
        if os.path.lexists(resolved):
            note = _read(resolved)
            if note is None or note.holdfast_preempt != name:
                raise _unfit(path, "there is something else already")
        return resolved

    def give(self, path: str, name: str, token: int, swap: int = 0) -> str | None:
        note = to_json(Note(holdfast_preempt=name, token=token, swap=swap)) + b"\n"
        # An earlier registration of that name may have left its signal there.
        self.clear(path, name, token - 1)
        try:
            if os.path.dirname(path) == str(self._folder):
                make_folder(self._folder, self._access)
            with _folder_of(path) as folder:
                base = os.path.basename(path)
                make_whole(base, note, access=self._access, folder_fd=folder)
        except FileExistsError:
            # A file that is gone by now was a signal, which was withdrawn meanwhile.
            if _is_for(_read(path), name, token) or not self.given(path):
                return None
            return f"there is another file at {path}"
        except OSError as error:
            return f"{path} cannot be made ({error.strerror})"
        except StoreUnavailable as error:
            return error.message
        return None

    def given(self, path: str) -> bool:
        return os.path.lexists(path)

    def clear(self, path: str, name: str, token: int) -> bool:
        note = _read(path)
        if note is None or note.holdfast_preempt != name or note.token > token:
            return False
        try:
            with _folder_of(path) as folder:
                os.unlink(os.path.basename(path), dir_fd=folder)
        except OSError:
            return False
        return True

    def swap_of(self, path: str, name: str, token: int) -> int:
        note = _read(path)
        return note.swap if note is not None and _is_for(note, name, token) else 0


def _is_for(note: Note | None, name: str, token: int) -> bool:
    return note is not None and (note.holdfast_preempt, note.token) == (name, token)


@contextmanager
def _folder_of(path: str) -> Iterator[int]:
    """Open the folder of a path without following any link. Raises OSError."""
    at = os.open("/", _FOLDER)
    try:
        for folder in filter(None, path.split("/")[:-1]):
            below = os.open(folder, _FOLDER, dir_fd=at)
            os.close(at)
            at = below
        yield at
    finally:
        os.close(at)


def _read(path: str) -> Note | None:
    """The content of a signal file; None for anything that is not one of ours."""
    try:
        with _folder_of(path) as folder:
            fd = os.open(os.path.basename(path), _READ, dir_fd=folder)
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return None
            return msgspec.json.decode(file.read(SIGNAL_BYTES_MAX), type=Note)
    except (OSError, msgspec.MsgspecError, UnicodeError):
        return None


def _unfit(path: object, why: str) -> InvalidValue:
    return InvalidValue(
        f"{ascii(path)[:80]} cannot be a signal file ({why}): give an absolute path where there "
        "is nothing yet",
        field="preempt_signal_path",
    )


def workflows_in_folder(
    folder: Path,
    own: Path,
    store: Store,
    journal: Journal,
    processes: Processes,
    *,
    mirror: SwapLogMirror | None = None,
    label: str = "",
    within: tuple[str, int] | None = None,
    access: Access = PRIVATE,
) -> Workflows:
    """The workflows of a store that keeps `workflows.json` in `folder`; `own` is for what that
    layout has no place for. Makes both folders. Raises StoreUnavailable when that fails.

    Another system may use the same folder: its swap lock is our swap lock, and `mirror` is its swap
    log. The files store takes its lock around each change, as the layout says.
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
        mirror=mirror,
        label=label,
        within=within,
    )
