"""Who the caller is: this process, with a label for people. A model cannot choose it."""

import os
import secrets
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.domains.agents import Agent
from holdfast.kernel.limits import LABEL_CHARS_MAX
from holdfast.kernel.names import check_label, check_new_label
from holdfast.primitives.locks.records import PART
from holdfast.runtime.connection import Holdfast

NAMELESS = "mcp"
_MARK_BYTES = 4
_NAME_CHARS_MAX = 64


class Claimant(NamedTuple):
    """Who holds what this process claims.

    `by` belongs to this process alone: two agents of one label exclude each other. `name` is the
    same as the beginning of an id.
    """

    label: str
    by: str
    name: str
    queues: tuple[str, ...]
    agent: Agent | None


def identify(label: str | None, queues: Sequence[str], agent: Agent | None) -> Claimant:
    """The identity of this process: a label, or that of its agent. Raises InvalidName."""
    known = check_new_label(label or (NAMELESS if agent is None else agent.agent_name), "label")
    mark = secrets.token_hex(_MARK_BYTES)
    # A part of a job shares its locks; a label must not make this process a part of another's.
    whole = known.replace(PART, "_")[: LABEL_CHARS_MAX - 2 * _MARK_BYTES - 1]
    plain = "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "_-") else "-"
        for letter in known
    )
    name = f"mcp-{plain[:_NAME_CHARS_MAX]}-{os.getpid()}-{mark}"
    served = tuple(dict.fromkeys(check_label(queue, "queue") for queue in queues)) or (known,)
    return Claimant(known, f"{whole}#{mark}", name, served, agent)


def agent_above(hf: Holdfast) -> Agent | None:
    """The agent whose own process is the nearest of this one and its ancestors."""
    named = [
        agent for agent in hf.agents.list_agents(fresh=True, damaged=[]) if agent.holder is not None
    ]
    for process in (hf.processes.current(), *hf.processes.ancestors()):
        for agent in named:
            if agent.holder is not None and agent.holder.parts == process.parts:
                return agent
    return None
