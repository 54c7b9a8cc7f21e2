"""Delegated work: who registered it, whose turn it is, and whose verdict counts.

record.py       a job, its states and the transitions between them
broker.py       where its events go
reach.py        how to get there, and what the environment says instead
asking.py       what a new job is to be, checked
steps.py        what a record becomes by a step, and why one is refused
late.py         what is kept of a verdict that came too late
writing.py      a change is a record, a journal entry and notices
registry.py     register, pick, finish and pick, update, heartbeat, get and list
reaping.py      ending what nobody works on
unanswered.py   putting back what nobody knows of
listing.py      jobs in order, read in pages
pruning.py      removing what ended long ago
events.py       an event, its signature, and where events wait to be sent
telling.py      publish and receive events
folder.py       a job as a file that other programs know
"""

from holdfast.domains.jobs.broker import Broker
from holdfast.domains.jobs.record import Job, JobStatus
from holdfast.domains.jobs.registry import Finished, Jobs

__all__ = ["Broker", "Finished", "Job", "JobStatus", "Jobs"]
