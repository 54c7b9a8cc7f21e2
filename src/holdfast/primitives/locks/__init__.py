"""Locks on resources: who holds them, and who is next.

records.py      the rows: held locks and waiters
policy.py       who may hold a lock, who is next, what keeps a request waiting
table.py        the rows that one decision reads and writes
hot_path.py     the usual turn at a contended lock, in a straight line
transaction.py  request, release, hand over, reap and kick inside one transaction
request.py      one request: what the caller wants, what the table answers, and the errors
acquisition.py  one acquire from the request to the grant, top-down
wait.py         what a sleeping waiter watches: deaths and leases just ahead
grant.py        what a holder has: tokens, expiry, suspension, durable copies
context.py      what all calls of a process share; renewal and withdrawal
manager.py      `Locks`: what callers use
inspect.py      status, graph and explanation
advice.py       what an operator can do about a lock that is not free
statistics.py   counts and histograms
"""

from holdfast.primitives.locks.grant import Grant
from holdfast.primitives.locks.manager import Locks
from holdfast.primitives.locks.records import Mode

__all__ = ["Grant", "Locks", "Mode"]
