"""Files that no reader sees in part: replaced so that they survive a power loss, or made new."""

import contextlib
import os
import stat

from holdfast.system.access import PRIVATE, Access, dress, in_folder
from holdfast.system.sync import sync_path

_DRAFT = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def atomic_durable_write(
    path: str | os.PathLike[str],
    data: bytes | str,
    *,
    mode: int | None = None,
    access: Access | None = None,
) -> None:
    """Replace the content of a file, or make it; when this returns, the new content survives a
    power loss.

    It writes a temporary file in the same folder, syncs it, renames it and syncs the folder. A
    reader sees the old content or the new one. Mode and owner of a replaced file are kept where
    this user may set them; a new file gets `access`, or `mode`, or 0666 less the umask. A link is
    replaced, not followed. Text is written as UTF-8.

    It takes no lock: among several writers, the caller must. Raises OSError, or StoreUnavailable
    for a link on the way that another user may have put there; then the old content is still there.
    """
    content = data.encode() if isinstance(data, str) else data

    def replace(folder: int, name: str) -> None:
        temporary = f".{name[:200]}.{os.urandom(8).hex()}.tmp"
        fd = os.open(temporary, _DRAFT, 0o600, dir_fd=folder)
        try:
            with open(fd, "wb") as file:
                file.write(content)
                file.flush()
                _set_access(fd, folder, name, mode, access)
                os.fsync(fd)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
            raise

    in_folder(path, replace)
    sync_path(os.path.dirname(os.fspath(path)) or ".")


def make_whole(
    path: str | os.PathLike[str],
    data: bytes,
    *,
    access: Access = PRIVATE,
    folder_fd: int | None = None,
    synced: bool = False,
) -> None:
    """Make a file that is whole from the first moment on, where there is none. Of several processes
    at once, one succeeds.

    It writes a draft and links it to the name. A path without a folder may be one in `folder_fd`.
    Raises FileExistsError when the name is taken, also by a link to nothing, and OSError. The name
    may not survive a power loss; the content does if it is `synced`.
    """
    target = os.fspath(path)
    draft = os.path.join(os.path.dirname(target), f".{os.urandom(8).hex()}.draft")
    fd = os.open(draft, _DRAFT, 0o600, dir_fd=folder_fd)
    try:
        with open(fd, "wb") as file:
            dress(fd, access)
            file.write(data)
            if synced:
                file.flush()
                os.fsync(fd)
        os.link(draft, target, src_dir_fd=folder_fd, dst_dir_fd=folder_fd, follow_symlinks=False)
    finally:
        os.unlink(draft, dir_fd=folder_fd)


def _set_access(fd: int, folder: int, name: str, mode: int | None, access: Access | None) -> None:
    """Give the new file the mode and owner of the one it replaces, or its own mode."""
    try:
        old = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        old = None
    # The mode of a link means nothing: it always allows everything.
    if old is None or not stat.S_ISREG(old.st_mode):
        if access is not None:
            dress(fd, access)
        else:
            os.fchmod(fd, 0o666 & ~_umask() if mode is None else mode)
        return
    if (old.st_uid, old.st_gid) != (os.getuid(), os.getgid()):
        # Only root may give a file to another user. Otherwise this user owns the new one.
        with contextlib.suppress(PermissionError):
            os.fchown(fd, old.st_uid, old.st_gid)
    os.fchmod(fd, old.st_mode & 0o777)


def _umask() -> int:
    # Setting it, even for an instant, would be seen by other threads.
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o077
