"""A durable queue with one slot, which is the right to run: requests are accepted in order, claimed
one at a time, and end once.

records.py      a request, its states and their transitions
transaction.py  the steps of a queue inside a transaction
queue.py        the transactions of a queue; reading and waiting
"""

from holdfast.primitives.queue.queue import Queue
from holdfast.primitives.queue.records import Draft, QueueRequest, RequestState

__all__ = ["Draft", "Queue", "QueueRequest", "RequestState"]
