"""`holdfast mcp`: the tools of agents, over stdio, with the official SDK.

identity.py      who the caller is: the server's own process, with a label
tool.py          a tool, and how its arguments are read
tools/           the tools
turn.py          one call of a tool
cancellation.py  a call that the client may cancel; the descriptor that ends a wait
pursuit.py       a wait that goes on between two calls
claims.py        the claims of this process, by handle
lock_claim.py, job_claim.py, recipe_claims.py    one kind of claim each
heartbeat.py     the thread that renews claims while the model thinks
answers.py, results.py    results, as structs whose schemas the client gets
lines.py         standard input, one bounded line at a time
server.py        the server
"""
