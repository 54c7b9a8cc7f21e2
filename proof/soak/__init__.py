"""The soak: dozens of processes use all domains of one store at once, while others of them are
killed, stopped and restarted.

    make soak MINUTES=10 SEED=7        on SQLite, then as long on PostgreSQL

child.py         a process of the soak: its counts, its logs and its witnesses
slot.py          a slot, filled by one process after the other
parts.py         the parts, and how many processes play each
lock_parts.py    locks of sets, shared and exclusive, by priority, with and without a TTL; counted holds
job_parts.py     producers and workers; the courier that takes events to a broker
agent_parts.py   agents that publish, refresh, resolve and leave
network_parts.py hosts, leases, routers
flow_parts.py    workflows and swaps
gateway_parts.py clients of the gateway
server_parts.py  clients of the servers, over HTTP; calls.py has their calls
tree_parts.py    commands under claims, whose processes are killed; tree_process.py is the command and its witness
mcp_parts.py     agents with a `holdfast mcp` each
journal_parts.py followers, and the watcher that checks the records all the time
invocation.py    how a `holdfast` command is started
programs.py      the gateway and the servers; services.py has the broker and PostgreSQL
supervisor.py    starts them, kills them by a seeded plan, and lets them run dry
ending.py        what must be true at the end
outcome.py       the plan of a soak and its outcome

Each child dies with the supervisor. A violation is written down by the process that sees it, and ends the
soak with status 1. The plan of what is killed, stopped and restarted follows from the seed; which
instruction it meets does not.
"""
