"""Syncs by name: what is on the disk when a power loss comes.

A file's content and its name are synced apart: fsync(2) of a file does not write the folder that
names it.
"""

import os
from pathlib import Path


def sync_path(path: str | os.PathLike[str], *, dir_fd: int | None = None, flags: int = 0) -> None:
    """Make the content of a file, or the names in a folder, survive a power loss. `flags` are more
    flags of open(2). Raises OSError.
    """
    # Non-blocking, because a FIFO in a file's place would block the open for ever.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags, dir_fd=dir_fd)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_names(folder: Path) -> None:
    """Make the names of the folder and of those above it survive a power loss: any may be new.

    Done before the first file is made in the folder. So a process that finds a file there knows
    that the folder lasts; and a process that finds only the folder does this again.
    """
    device = folder.stat().st_dev
    for parent in folder.parents:
        # A new folder is on the file system of its parent, so above a mount point none is new.
        if parent.stat().st_dev != device:
            return
        try:
            sync_path(parent)
        except PermissionError:
            continue
