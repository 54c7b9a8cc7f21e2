"""The tools, in the order in which a client shows them."""

from holdfast.surfaces.mcp.tool import Tool
from holdfast.surfaces.mcp.tools.agents import AGENT_TOOLS
from holdfast.surfaces.mcp.tools.jobs import JOB_TOOLS
from holdfast.surfaces.mcp.tools.locks import LOCK_TOOLS
from holdfast.surfaces.mcp.tools.overview import LOOKING_TOOLS
from holdfast.surfaces.mcp.tools.recipes import RECIPE_TOOLS

TOOLS: dict[str, Tool] = {
    tool.name: tool
    for tool in (*LOOKING_TOOLS, *AGENT_TOOLS, *JOB_TOOLS, *LOCK_TOOLS, *RECIPE_TOOLS)
}
