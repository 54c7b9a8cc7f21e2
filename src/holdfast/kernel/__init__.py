"""Values and rules that need no I/O and are true everywhere.

Belongs here: names, holders, clocks, leases, tokens, records and their codec, errors, limits,
settings, and the port that every store fulfils. Does not belong here: anything that opens a file, a
socket or a process, and anything that names a product, an agent, a job or a router.
"""
