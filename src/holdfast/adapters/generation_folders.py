"""The folders that agents which are run here have for themselves: one a generation, with its manifest in it."""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


class GenerationFolders:
    """Those below the user's state folder, which is asked for when it is needed: there may be none."""

    def __init__(self, state: Callable[[], Path]) -> None:
        self._state = state

    def of(self, agent_id: str, generation_id: str) -> str:
        """The folder that a generation has where its user names none. Raises InvalidValue without a state folder."""
        return os.path.join(self._state(), "agents", agent_id, generation_id)

    def remove(self, folder: str, agent_id: str, generation_id: str) -> None:
        """Remove a generation's folder, if it is that one: one that the user named stays. What cannot be removed stays too."""
        # Another program may have written anything for a generation.
        plain = generation_id not in (os.curdir, os.pardir) and os.sep not in generation_id
        if plain and folder == self.of(agent_id, generation_id):
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):
                # The last generation of an agent leaves nothing.
                os.rmdir(os.path.dirname(folder))
