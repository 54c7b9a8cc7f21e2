"""Values and rules without I/O, and the port that every store implements.

holder.py         a process that can be proved alive or dead, or is unknown
lease.py          freshness by time; who may take a claim away
token.py          integers that only grow
store.py          the store port: transact, read, listen, journal
space.py          one kind of record, with all that a store must know about it
layout.py         how plain files show a space
order.py          tuples as bytes that sort like them, for indexes
codec.py          records as strict JSON
names.py          what may be a name
limits.py         every bound, and the defaults that no setting changes
settings.py       what users may set
errors.py         the tree of errors, exit statuses and HTTP statuses
clock.py          instants, and the clock of the system
agent_adapter.py  how an agent is reached
histogram.py      durations, counted by length
text.py           text that people read
threads.py        threads and locks that survive Ctrl-C at any moment
faults.py         points at which a test may kill, stop or fail the program
"""
