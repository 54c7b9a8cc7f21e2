"""Signal files on this machine's disk.

A file says in itself for which registration it was made, so that only our own are ever removed.
Each folder on the way to it is opened without following links, and the file appears whole, and only
where there is none.

Workflows in a folder of plain files: the locks and the log that lie beside `workflows.json` there.

Another system may look at the same folder. So its swap lock is our swap lock, and its log tells
what happens to swaps. Its lock around each change is taken by the files store, as the layout says.
"""

import os
import stat
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.adapters.durable_write import make_whole
from holdfast.adapters.journal_mirror import swap_log_file
from holdfast.domains.workflows import Workflows
from holdfast.domains.workflows.wire import SWAP_LOCK, SWAP_LOG
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
    """What stands in a signal file: for whom it was made."""

    holdfast_preempt: str
    token: int
    swap: int = 0


class _Place(NamedTuple):
    """A file's folder, open, and its name in it."""

    folder: int
    name: str


class SignalFiles:
    """The signal files of this machine; `folder` is for those whose owners chose no place, and is
    made when needed.
    """

    def __init__(self, folder: Path, access: Access = PRIVATE) -> None:
        self._access = access
        self._folder = Path(resolve(folder))

    def path_of(self, name: str, token: int) -> str:
        """Where the signal of a registration lies unless its owner chose a place."""
        return str(self._folder / f"{name}-{token}.preempt")

    def checked(self, path: str, name: str) -> str:
        """The caller's own path, made out. Raises InvalidValue."""
        if (
            not isinstance(path, str)
            or "\0" in path
            or not os.path.isabs(path)
            or os.path.basename(path) in ("", ".", "..")
        ):
            raise _unfit(path, "it is not the absolute path of a file")
        made_out = os.path.join(resolve(os.path.dirname(path)), os.path.basename(path))
        if len(os.fsencode(made_out)) > SIGNAL_PATH_BYTES_MAX:
            raise _unfit(path, f"it is longer than {SIGNAL_PATH_BYTES_MAX} bytes")
        if not os.path.isdir(os.path.dirname(made_out)):
            raise _unfit(path, "its folder is not there")
        if os.path.lexists(made_out):
            note = _note(made_out)
            if note is None or note.holdfast_preempt != name:
                raise _unfit(path, "there is something else already")
        return made_out

    def give(self, path: str, name: str, token: int, swap: int = 0) -> str | None:
        """Make the signal file; return what is wrong when that cannot be done."""
        note = Note(holdfast_preempt=name, token=token, swap=swap)
        # What an earlier registration of that name left there says nothing to this one, which may
        # not have cleared it yet.
        self.clear(path, name, token - 1)
        try:
            if os.path.dirname(path) == str(self._folder):
                make_folder(self._folder, self._access)
            place = _opened(path)
            try:
                make_whole(
                    place.name, to_json(note) + b"\n", access=self._access, folder_fd=place.folder
                )
            finally:
                os.close(place.folder)
        except FileExistsError:
            there = _note(path)
            ours = there is not None and (there.holdfast_preempt, there.token) == (name, token)
            # One that is gone by now was taken back meanwhile.
            return None if ours or not self.given(path) else f"there is another file at {path}"
        except OSError as error:
            return f"{path} cannot be made ({error.strerror})"
        except StoreUnavailable as error:
            return error.message
        return None

    def given(self, path: str) -> bool:
        """Is there a signal?"""
        return os.path.lexists(path)

    def clear(self, path: str, name: str, token: int) -> bool:
        """Remove the signal file if it was made for that workflow, for this registration or an
        earlier one.
        """
        note = _note(path)
        if note is None or note.holdfast_preempt != name or note.token > token:
            return False
        try:
            place = _opened(path)
            try:
                os.unlink(place.name, dir_fd=place.folder)
            finally:
                os.close(place.folder)
        except OSError:
            return False
        return True

    def swap_of(self, path: str, name: str, token: int) -> int:
        """The token of the swap for which a registration's signal was made; 0 where there is
        none.
        """
        note = _note(path)
        return (
            note.swap
            if note is not None and (note.holdfast_preempt, note.token) == (name, token)
            else 0
        )


def _opened(path: str) -> _Place:
    """The folder of a path, reached without following any link. Raises OSError."""
    *folders, name = path.split("/")[1:]
    at = os.open("/", _FOLDER)
    for folder in filter(None, folders):
        try:
            below = os.open(folder, _FOLDER, dir_fd=at)
        finally:
            os.close(at)
        at = below
    return _Place(at, name)


def _note(path: str) -> Note | None:
    """What a signal file says; None for anything that is not one of ours."""
    try:
        place = _opened(path)
        try:
            fd = os.open(place.name, _READ, dir_fd=place.folder)
        finally:
            os.close(place.folder)
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
    label: str = "",
    within: tuple[str, int] | None = None,
    access: Access = PRIVATE,
) -> Workflows:
    """The workflows of a store whose layout lies in `folder`; `own` is for what that layout has no
    place for. Makes both.

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
