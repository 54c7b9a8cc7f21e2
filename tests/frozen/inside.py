"""Every import of Holdfast's internals that the snapshots need: a rename touches only this."""

from holdfast.surfaces.cli.root import holdfast as root_command
from tests.harness.tmux_server import tmux_server
from tests.surfaces.broker import running as broker_running
from tests.surfaces.command import CommandLine
from tests.surfaces.gateway_http import served as gateway_served
from tests.surfaces.parity import OPERATIONS, Case, by_command, by_http, by_library
from tests.surfaces.parity_cases import (
    TABLE,
    a_hold,
    a_job_with_a_late_result,
    a_leased_host,
    a_leased_neighbor,
    a_loaded_recipe,
    a_lost_lock,
    an_agent,
    an_asked_workflow,
    an_unsent_event,
)
from tests.surfaces.parity_stage import facts_for, gateway_beside, surroundings
from tests.surfaces.server_http import Served, served

STATES = (
    a_job_with_a_late_result,
    an_unsent_event,
    a_lost_lock,
    a_hold,
    an_agent,
    a_leased_host,
    a_leased_neighbor,
    an_asked_workflow,
    a_loaded_recipe,
)
"""Together they write a record into every space of a store."""

__all__ = [
    "OPERATIONS",
    "STATES",
    "TABLE",
    "Case",
    "CommandLine",
    "Served",
    "broker_running",
    "by_command",
    "by_http",
    "by_library",
    "facts_for",
    "gateway_beside",
    "gateway_served",
    "root_command",
    "served",
    "surroundings",
    "tmux_server",
]
