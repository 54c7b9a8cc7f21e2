"""The page about MCP says what there is: every tool, notice, option and bound."""

import re
from pathlib import Path
from typing import get_args

from holdfast.kernel.limits import (
    MCP_CALLS_MAX,
    MCP_HANDLES_MAX,
    MCP_LINE_BYTES_MAX,
    MCP_UNCLAIMED_S,
    MCP_WAIT_MAX_S,
)
from holdfast.operations import all_operations
from holdfast.surfaces.mcp.claims import HANDLES, NoticeKind
from holdfast.surfaces.mcp.server import INSTRUCTIONS
from holdfast.surfaces.mcp.tools import LIFE_TOOLS, TOOLS

PAGE = (Path(__file__).parents[2] / "docs" / "mcp.md").read_text()


def _table(heading: str) -> set[str]:
    """The names in the first column of a section's table."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_the_guide_shows_every_tool_and_no_other() -> None:
    assert _table("The tools") == TOOLS.keys() | LIFE_TOOLS.keys()


def test_the_guide_shows_every_kind_of_notice_and_no_other() -> None:
    assert _table("What is pending") == set(get_args(NoticeKind))


def test_the_guide_shows_every_option() -> None:
    from holdfast.surfaces.cli.mcp import mcp

    options = {name for parameter in mcp.params for name in parameter.opts} - {"--namespace"}
    assert [name for name in sorted(options) if name not in PAGE] == []


def test_the_bounds_that_are_named_are_those_of_the_program() -> None:
    page = " ".join(PAGE.split())
    assert MCP_HANDLES_MAX == MCP_CALLS_MAX
    assert f"{MCP_HANDLES_MAX} handles and {MCP_CALLS_MAX} calls at a time" in page
    assert f"{MCP_WAIT_MAX_S:g} s for a wait, {MCP_LINE_BYTES_MAX >> 20} MiB for a message" in page
    assert f"does not come back for {MCP_UNCLAIMED_S:g} s" in page
    assert f"longer than {MCP_WAIT_MAX_S:g} s" in INSTRUCTIONS


def test_every_tool_that_another_names_is_there() -> None:
    texts = [INSTRUCTIONS, *HANDLES.values(), *(tool.text for tool in TOOLS.values())]
    named = set(re.findall(r"\b[a-z]+_[a-z_]+\b", " ".join(texts)))
    arguments = {name for tool in TOOLS.values() for name in tool.arguments.__struct_fields__}
    others = {*get_args(NoticeKind), "give_back", "permission_required", "not_found", "swap_needed"}
    assert named - set(TOOLS) - arguments - others == set()


def test_every_operation_that_is_exposed_as_a_tool_is_that_tool() -> None:
    exposed = {one.mcp: one for one in all_operations() if one.mcp is not None}
    made = {name: tool.operation for name, tool in TOOLS.items() if tool.operation is not None}
    assert made == exposed


def test_the_guide_shows_every_kind_of_handle() -> None:
    assert set(re.findall(r"^\| `(\w+):", PAGE, re.MULTILINE)) == set(HANDLES)
