"""The notes of agents' last runs: a file for each agent of a store, in the user's state folder."""

import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from holdfast.adapters.agent_tool import REPORTS_FOLDER
from holdfast.adapters.report_folder import ReportFolder
from holdfast.domains.agents.runs import AgentConversation, AgentRun
from holdfast.kernel.agent_adapter import QUESTION_TIMEOUT_S
from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import HoldfastError
from holdfast.system.access import make_private_folder, read_file, remove_file, replace_file

_SUFFIX = ".json"
_log = logging.getLogger("holdfast.agents")


class AgentRunFiles:
    """The notes in a folder, as the port `AgentRuns` says. `folder` is called only when it is
    needed: there may be no state folder.
    """

    def __init__(self, folder: Callable[[], Path]) -> None:
        self._folder = folder

    def read(self, agent_id: str) -> AgentRun | None:
        try:
            return _decoder.decode(read_file(self._path(agent_id)))
        except (OSError, msgspec.DecodeError, HoldfastError):
            # Without a state folder, or with a damaged note, nothing is known of the last run.
            return None

    def write(self, run: AgentRun) -> None:
        """Replace the note of an agent. One that cannot be written is only missed: the agent runs
        all the same.
        """
        try:
            make_private_folder(self._folder())
            replace_file(self._path(run.agent.agent_id), to_json(run))
        except (OSError, HoldfastError) as error:
            _log.warning("the run of %s is not noted: %s", run.agent.agent_name, error)

    def note_conversation(self, agent_id: str, generation_id: str, root: str) -> None:
        """Note which conversation the reports in a generation's folder name."""
        run = self.read(agent_id)
        if run is not None and run.agent.generation_id == generation_id:
            found = last_conversation(root)
            if found is not None and found != run.conversation:
                self.write(replace(run, conversation=found))

    def remove(self, agent_id: str) -> None:
        with contextlib.suppress(OSError, HoldfastError):
            remove_file(self._path(agent_id))

    def listed(self) -> list[AgentRun]:
        try:
            names = sorted(os.listdir(self._folder()))
        except (OSError, HoldfastError):
            return []
        found = [self.read(name.removesuffix(_SUFFIX)) for name in names if name.endswith(_SUFFIX)]
        return [run for run in found if run is not None]

    def _path(self, agent_id: str) -> Path:
        return self._folder() / f"{agent_id}{_SUFFIX}"


def last_conversation(root: str) -> AgentConversation | None:
    """The conversation that a tool's hooks named last, in the folder of its agent; None without
    such a report.
    """
    said = ReportFolder(Path(root, REPORTS_FOLDER), patience_s=QUESTION_TIMEOUT_S).peek()
    if said.session_id is None:
        return None
    return AgentConversation(session_id=said.session_id, transcript=said.transcript)


_decoder = msgspec.json.Decoder(AgentRun)
