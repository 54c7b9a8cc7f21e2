"""The areas of the command line: the first word of every command."""

AREAS = {
    "agents": "Live agents: run one, publish, list, resolve, cleanup.",
    "doctor": "What is wrong here, and how to fix it.",
    "gateway": "An agent's durable queue of requests: serve, prompt, status, reconcile.",
    "holds": "Counts that cannot leak: how many use something, without those that died.",
    "jobs": "Delegated work: register, run, pick, publish, watch, logs.",
    "locks": "Locks on resources of any name: run a command under one, acquire, status, explain.",
    "log": "The journal: what happened, and following it live.",
    "mcp": "The tools of agents, for an MCP client: locks, jobs, other agents, recipes.",
    "metrics": "Everything that is counted and measured, as Prometheus scrapes it.",
    "network": "Hosts, routers and neighbours of a network under test: who uses what.",
    "serve": "Serve the store over HTTP, with a page for browsers.",
    "store": "The store itself: check, backup, restore.",
    "swap": "The loaded recipe: swap to another when nobody needs the old one, status, log.",
    "token": "What a holder shows with its work: check.",
    "tour": "See Holdfast work, with real processes and kills, in less than a minute.",
    "workflows": "Work that needs a recipe: register, renew, release, list, run a command.",
}
"""Each is the module and the command of that name."""

ALONE = {
    ("agents", "run"): "agent_run",
    ("jobs", "run"): "job_run",
    ("locks", "run"): "lock_run",
    ("workflows", "run"): "workflow_run",
}
"""Commands that are loaded without the rest of their area, and their modules: a command that runs
another program must start fast, and stays loaded for as long as that runs."""
