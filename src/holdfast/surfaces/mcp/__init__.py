"""`holdfast mcp`: the tools of agents, over stdio, with the official SDK.

tool.py          how a tool is made from an operation: its arguments, its schema
tools.py         the list of tools
overview.py, agents.py, jobs.py, locks.py, recipes.py    the tools, and the claims behind them
claims.py        what the agent holds, by handle: renewed, reported in every answer, released
offer.py         a claim that the agent waits for between calls
call.py          one call, which the client may cancel
identity.py      who the caller is: the server's own process, with a label
lines.py         standard input, one bounded line at a time
server.py        the server: answers and errors as the protocol carries them

What a tool accepts and does comes from `holdfast.operations`. Only this surface has the identity of
a process, handles, waits that go on between calls, notices and cancellation.
"""
