"""Jobs: delegated work, who may claim it, and whose verdict counts.

records.py         a job, its states, the table of transitions, its broker
draft.py           a new job, checked before anything is stored, and the bounds of its record
transitions.py     what a record becomes by a step, why a step is refused, late verdicts
registry.py        the public operations: register, pick, finish, cancel, retry, list
picker.py          how a job is claimed, and claims whose commit was not confirmed
reaper.py          ends or requeues running jobs whose worker died or whose time is over
leftovers.py       processes that earlier attempts left on this machine
work.py            what a worker does and reports; the worker is in runtime/worker.py
queries.py         jobs in order of arrival, read in pages
retention.py       removes jobs that ended long ago
events.py          an event, its signature, and its space
event_stream.py    publish and receive events
broker_address.py  how to connect to a job's broker
wire.py            a job as a JSON file of a registry folder
"""

from holdfast.domains.jobs.records import Broker, Job, JobStatus
from holdfast.domains.jobs.registry import Finished, Jobs

__all__ = ["Broker", "Finished", "Job", "JobStatus", "Jobs"]
