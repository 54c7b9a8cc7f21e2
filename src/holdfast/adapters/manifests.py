"""Manifests in files: read as they are, and written whole or not at all."""

import os
from pathlib import Path

from holdfast.access import PRIVATE, Access, make_folder
from holdfast.adapters.durable_write import atomic_durable_write
from holdfast.kernel.limits import MANIFEST_BYTES_MAX


class ManifestFiles:
    """The files of this machine."""

    def __init__(self, access: Access = PRIVATE) -> None:
        self._access = access

    def read(self, path: str) -> bytes | None:
        """What is in a file, up to one byte more than a manifest may have; None when there is none. Raises OSError."""
        try:
            # Not blocking: a FIFO in a manifest's place must not hold up its reader.
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            return None
        with open(fd, "rb") as file:
            return file.read(MANIFEST_BYTES_MAX + 1)

    def is_folder(self, path: str) -> bool:
        """Is there a folder at that path?"""
        return os.path.isdir(path)

    def write(self, path: str, data: bytes) -> None:
        """Put a file in its place, and on the disk, in one step; its folder is made. Raises OSError."""
        make_folder(Path(path).parent, self._access)
        atomic_durable_write(path, data, access=self._access)
