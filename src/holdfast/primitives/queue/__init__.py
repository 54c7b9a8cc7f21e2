"""A durable queue with one slot: requests are accepted in order, claimed one at a time, and each
ends once.

records.py      a request, its states and the transitions between them
transaction.py  each step inside a caller's transaction
queue.py        each step as a transaction of its own; reading and waiting
"""

from holdfast.primitives.queue.queue import Queue
from holdfast.primitives.queue.records import Draft, Request, RequestState

__all__ = ["Draft", "Queue", "Request", "RequestState"]
