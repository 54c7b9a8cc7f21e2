"""How a tool is started as an agent: its command line and environment by its profile, so that it
reports what it does.
"""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.kernel.agent_profile import Profile
from holdfast.kernel.errors import InvalidValue

REPORTS_FOLDER = "reports"


class ToolLaunch(NamedTuple):
    """The command and the environment variables that start a tool, and the settings of its tmux
    adapter that follow from its profile.
    """

    command: list[str]
    environment: dict[str, str]
    adapter: dict[str, Any]


def tool_launch(
    profile: Profile,
    command: Sequence[str],
    *,
    root: str,
    session_id: str | None = None,
) -> ToolLaunch:
    """How that command is started as an agent whose folder is `root`; with `session_id`, it goes on
    with that conversation. Raises InvalidValue when the tool cannot do that.
    """
    words = [*command, *profile.launch.arguments]
    if session_id is not None:
        if not profile.launch.resume:
            raise InvalidValue(
                f"{profile.name} cannot go on with a conversation: start a new one without resume",
                field="resume",
            )
        words += [word.replace("{session}", session_id) for word in profile.launch.resume]
    adapter: dict[str, Any] = {"profile": profile.name, "interrupt": profile.keys.interrupt}
    if profile.reports is not None:
        adapter["reports"] = os.path.join(root, REPORTS_FOLDER)
    return ToolLaunch(words, {}, adapter)
