"""The areas of the command line, and the commands that messages show, completed with the options
that this command was given.

The code that writes a message does not know which store the command line chose. Without its options
a pasted command would use another store, and find nothing there. What the environment or
`holdfast.toml` chose needs no option.
"""

import re

AREAS = {
    "agents": "Live agents: run one, publish, list, resolve, cleanup.",
    "doctor": "What is wrong here, and how to fix it.",
    "gateway": "An agent's durable queue of requests: serve, prompt, status, reconcile.",
    "holds": "Counts that cannot leak: how many use something, without those that died.",
    "jobs": "Delegated work: register, run, pick, publish, watch, logs.",
    "locks": "Locks on resources of any name: run a command under one, acquire, status, explain.",
    "log": "The journal: what happened, and following it live.",
    "mcp": "The tools of agents, for an MCP client: locks, jobs, other agents, recipes.",
    "metrics": "All metrics, in the format of Prometheus.",
    "network": "Hosts, routers and neighbours of a network under test: who uses what.",
    "serve": "Serve the store over HTTP, with a page for browsers.",
    "store": "The store itself: check, backup, restore.",
    "swap": "The loaded recipe: swap to another when nobody needs the old one, status, log.",
    "token": "Check whether a holder's token is still in force.",
    "tour": "See Holdfast work, with real processes and kills, in less than a minute.",
    "workflows": "Work that needs a recipe: register, renew, release, list, run a command.",
}
"""The first word of every command: its module and the command in it have that name."""

ALONE = {
    ("agents", "run"): "agent_run",
    ("jobs", "run"): "job_run",
    ("locks", "run"): "lock_run",
    ("workflows", "run"): "workflow_run",
}
"""Commands that are loaded without the rest of their area, and their modules: a command that runs
another program must start fast, and stays loaded for as long as that runs."""

chosen: dict[str, str] = {}
"""The options of this command line that choose a store: `store`, `namespace`, `registry_dir`. They
may stand before or behind the verb; those behind it count.
"""

_COMMAND = rf"(?<![\w./-])holdfast ({'|'.join(AREAS)})\b(?![^`]*--help`)( [a-z-]+)?"
_ABOUT_NO_STORE = ("tour",)


def completed(text: str) -> str:
    """The text with every command of Holdfast as its reader can paste it."""
    if not chosen or "holdfast " not in text:
        return text
    return re.sub(_COMMAND, _with_options, text)


def _with_options(found: "re.Match[str]") -> str:
    area, verb = found[1], found[2] or ""
    if area in _ABOUT_NO_STORE:
        return found[0]
    # Every command takes these two before its area. Only those about jobs take a folder of jobs,
    # behind the verb.
    before = _options("store", "namespace")
    behind = _options("registry_dir") if area == "jobs" and verb else ""
    return f"holdfast{before} {area}{verb}{behind}"


def _options(*names: str) -> str:
    # Loaded here, since few commands have anything to complete.
    import shlex

    # Without a database's password: messages end up in logs.
    secret = r"^(postgres(?:ql)?://[^:/@]*):[^@]*@|((?:ssl)?password=)[^&\s]*"
    return "".join(
        f" --{name.replace('_', '-')} {shlex.quote(re.sub(secret, _redacted, chosen[name]))}"
        for name in names
        if name in chosen
    )


def _redacted(found: "re.Match[str]") -> str:
    return f"{found[1]}:***@" if found[1] else f"{found[2]}***"
