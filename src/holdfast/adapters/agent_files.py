"""Manifests in files, and the folders that Holdfast makes for agents, one for each generation."""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from holdfast.adapters.agent_runs import AgentRunFiles
from holdfast.adapters.durable_write import atomic_durable_write
from holdfast.kernel.limits import MANIFEST_BYTES_MAX
from holdfast.system.access import PRIVATE, Access, make_folder


class ManifestFiles:
    """The files of this machine, as the port `Files` says."""

    def __init__(self, access: Access = PRIVATE) -> None:
        self._access = access

    def read(self, path: str) -> bytes | None:
        try:
            # Not blocking: a FIFO at the manifest's path must not block the reader.
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            return None
        with open(fd, "rb") as file:
            return file.read(MANIFEST_BYTES_MAX + 1)

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path)

    def write(self, path: str, data: bytes) -> None:
        """Replace a file atomically and durably, and make its folder. Raises OSError."""
        make_folder(Path(path).parent, self._access)
        atomic_durable_write(path, data, access=self._access)


class GenerationFolders:
    """Folders below the user's state folder. `state` is called only when it is needed: there may be
    no state folder. `runs` are the notes that outlive a folder.
    """

    def __init__(self, state: Callable[[], Path], runs: AgentRunFiles | None = None) -> None:
        self._state = state
        self._runs = runs

    def of(self, agent_id: str, generation_id: str) -> str:
        """The default folder of a generation. Raises InvalidValue without a state folder."""
        return os.path.join(self._state(), "agents", agent_id, generation_id)

    def remove(self, folder: str, agent_id: str, generation_id: str) -> None:
        """Remove a generation's default folder. A folder that the user named stays, and so does
        what cannot be removed.
        """
        # Another program may have published any text as its generation.
        plain = generation_id not in (os.curdir, os.pardir) and os.sep not in generation_id
        if plain and folder == self.of(agent_id, generation_id):
            # The conversation goes on in the next generation, which finds it in the note.
            if self._runs is not None:
                self._runs.note_conversation(agent_id, generation_id, folder)
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):
                # Fails while the agent has folders of other generations.
                os.rmdir(os.path.dirname(folder))
