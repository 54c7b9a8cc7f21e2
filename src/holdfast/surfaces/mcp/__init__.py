"""`holdfast mcp`: the tools of agents, over stdio by the official SDK.

identity.py     who the caller is: the server's own process, with a label
stopping.py     one call, which the client may take back; the descriptor that ends a wait
pursuit.py      a wait that goes on between two calls
claims.py       what this process has in hand, by handle
lock_claim.py, job_claim.py, recipe_claims.py     the kinds of it
attending.py    the thread that gives signs of life while the model thinks
answers.py      what comes back, as structs whose schemas the client gets
tool.py         a tool, and how its arguments are read
tools/          the tools
lines.py        standard input, a bounded line at a time
serving.py      the server
"""
