"""Files that are never seen in part: replaced so that they are whole after a power loss, or made where there is none."""

import contextlib
import os
import secrets
import tempfile

from holdfast.access import PRIVATE, Access, dress

_DRAFT = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def atomic_durable_write(
    path: str | os.PathLike[str], data: bytes | str, *, mode: int | None = None, access: Access | None = None
) -> None:
    """Replace the content of a file, or make it; when this returns, the new content survives a power loss.

    By a temporary file in the same folder, fsync, rename and fsync of the folder. A reader sees the old content or the new
    one. Mode and owner of a replaced file are kept where this user may set them; a new file is for whom `access` says, or
    has `mode`, or 0666 less the umask. A link is replaced, not followed. Text is written as UTF-8.

    Not promised: anything among several writers. It takes no lock; the caller locks. Raises OSError, and then the old content
    is there still.
    """
    target = os.fspath(path)
    folder = os.path.dirname(target) or "."
    fd, temporary = tempfile.mkstemp(prefix=f".{os.path.basename(target)}.", suffix=".tmp", dir=folder)
    try:
        with open(fd, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            _take_after(file.fileno(), target, mode, access)
            os.fsync(file.fileno())
        os.rename(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
    sync_folder(folder)


def make_whole(path: str | os.PathLike[str], data: bytes, *, access: Access = PRIVATE, folder_fd: int | None = None) -> None:
    """Make a file that is whole from the first moment on, where there is none; of several who do it at once, one does.

    By a draft beside it that is linked to its name. A path without a folder may be one in `folder_fd`. Raises FileExistsError
    when there is something already, also a link to nothing, and OSError. Not promised: that it survives a power loss.
    """
    target = os.fspath(path)
    draft = os.path.join(os.path.dirname(target), f".{secrets.token_hex(8)}.draft")
    fd = os.open(draft, _DRAFT, 0o600, dir_fd=folder_fd)
    try:
        with open(fd, "wb") as file:
            dress(fd, access)
            file.write(data)
        os.link(draft, target, src_dir_fd=folder_fd, dst_dir_fd=folder_fd, follow_symlinks=False)
    finally:
        os.unlink(draft, dir_fd=folder_fd)


def sync_folder(folder: str) -> None:
    """Make the names in a folder survive a power loss. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _take_after(fd: int, target: str, mode: int | None, access: Access | None) -> None:
    """Give the new file the mode and owner of the one it replaces, else its own mode."""
    try:
        old = os.stat(target, follow_symlinks=False)
    except FileNotFoundError:
        if access is not None:
            dress(fd, access)
        else:
            os.fchmod(fd, 0o666 & ~_umask() if mode is None else mode)
        return
    if (old.st_uid, old.st_gid) != (os.getuid(), os.getgid()):
        # Where that is another's file, the new one is ours.
        with contextlib.suppress(PermissionError):
            os.fchown(fd, old.st_uid, old.st_gid)
    os.fchmod(fd, old.st_mode & 0o7777)


def _umask() -> int:
    """The umask, read without changing it: to set it, even for an instant, would be seen by other threads."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o077
