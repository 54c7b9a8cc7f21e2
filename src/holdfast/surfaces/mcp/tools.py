"""The tools, in the order in which a client shows them."""

from holdfast.kernel.settings import Settings
from holdfast.surfaces.mcp.agents import (
    answer_question,
    clean_up_agents,
    find_agents,
    request_status,
    send_request,
)
from holdfast.surfaces.mcp.jobs import claim_job, create_job, report_job, retry_job
from holdfast.surfaces.mcp.life import start_agent, stop_agent
from holdfast.surfaces.mcp.locks import acquire
from holdfast.surfaces.mcp.overview import release, status, wait, whoami
from holdfast.surfaces.mcp.recipes import use_recipe, yield_or_swap
from holdfast.surfaces.mcp.tool import Tool

TOOLS = {
    tool.name: tool
    for tool in (
        *(whoami, status, find_agents, send_request, request_status),
        *(answer_question, clean_up_agents),
        *(create_job, claim_job, report_job, retry_job),
        *(acquire, wait, release, use_recipe, yield_or_swap),
    )
}
LIFE_TOOLS = {tool.name: tool for tool in (start_agent, stop_agent)}
"""The tools that an operator switches on."""


def tools_by(settings: Settings) -> dict[str, Tool]:
    """The tools that these settings allow, by name."""
    return TOOLS | LIFE_TOOLS if settings.mcp.may_start else TOOLS
