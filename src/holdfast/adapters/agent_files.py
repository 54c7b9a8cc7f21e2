"""Manifests in files: read as they are, and written whole or not at all.

The folders that agents which are run here have for themselves: one a generation, with its manifest
in it.
"""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from holdfast.adapters.durable_write import atomic_durable_write
from holdfast.kernel.limits import MANIFEST_BYTES_MAX
from holdfast.system.access import PRIVATE, Access, make_folder


class ManifestFiles:
    """The files of this machine."""

    def __init__(self, access: Access = PRIVATE) -> None:
        self._access = access

    def read(self, path: str) -> bytes | None:
        """What is in a file, up to one byte more than a manifest may have; None when there is none.
        Raises OSError.
        """
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
        """Put a file in its place, and on the disk, in one step; its folder is made. Raises
        OSError.
        """
        make_folder(Path(path).parent, self._access)
        atomic_durable_write(path, data, access=self._access)


class GenerationFolders:
    """Those below the user's state folder, which is asked for when it is needed: there may be
    none.
    """

    def __init__(self, state: Callable[[], Path]) -> None:
        self._state = state

    def of(self, agent_id: str, generation_id: str) -> str:
        """The folder that a generation has where its user names none. Raises InvalidValue without a
        state folder.
        """
        return os.path.join(self._state(), "agents", agent_id, generation_id)

    def remove(self, folder: str, agent_id: str, generation_id: str) -> None:
        """Remove a generation's folder, if it is that one: one that the user named stays. What
        cannot be removed stays too.
        """
        # Another program may have written anything for a generation.
        plain = generation_id not in (os.curdir, os.pardir) and os.sep not in generation_id
        if plain and folder == self.of(agent_id, generation_id):
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):
                # The last generation of an agent leaves nothing.
                os.rmdir(os.path.dirname(folder))
