"""Rigs with the real tools."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real_agents.tool_rig import ToolRig, tool_rig


@pytest.fixture
def claude(tmp_path: Path) -> Iterator[ToolRig]:
    """Claude Code, started, with its gateway, and ready."""
    with tool_rig(tmp_path, "claude") as rig:
        rig.begin()
        rig.serve()
        rig.until_state("ready")
        yield rig
