"""Values and rules without I/O: names, holders, clocks, leases, tokens, records and their codec,
errors, limits, settings, and the port that every store implements.

Nothing here opens a file, a socket or a process.
"""
