"""Holdfast and its peers, side by side in one run: `python -m bench` writes docs/benchmarks.md.

measure.py     workers, rounds, and what is kept of them
environment.py the caller's settings, which are cleared
machine.py     what the run was made on
work.py        the work itself: Holdfast's way and the raw one, on the same rows
work_postgres.py  the same on PostgreSQL
locking.py     the locks of Holdfast and its peers, used in one way
queueing.py    the queues of Holdfast and its peers, used in one way
turns.py       processes that take turns at them
servers.py     the servers that some peers need
needs          installs the peers, and the servers where it may
peers.txt      the peers
rows_*.py      a family of figures each: `NAME` and `measure(lab)`
report.py      the page
pictures.py    its pictures, drawn with plain strings
results.py     the figures of a run as JSON
compare.py     two runs side by side: `python -m bench.compare BEFORE AFTER`
"""
