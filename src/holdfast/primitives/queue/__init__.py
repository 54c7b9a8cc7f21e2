"""A durable queue with one slot: requests are accepted in order, claimed one at a time, and each ends once.

record.py    a request, its states and the transitions between them
line.py      the verbs, inside a transaction
queue.py     the same, each as a transaction of its own; looking and waiting
"""

from holdfast.primitives.queue.queue import Queue
from holdfast.primitives.queue.record import Draft, Request, RequestState

__all__ = ["Draft", "Queue", "Request", "RequestState"]
