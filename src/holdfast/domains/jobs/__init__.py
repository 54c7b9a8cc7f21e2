"""Delegated work: who registered it, whose turn it is, and whose verdict counts.

record.py       a job, its states and the transitions between them
registry.py     register, pick, update, get and list
"""

from holdfast.domains.jobs.record import Job, JobStatus
from holdfast.domains.jobs.registry import Jobs

__all__ = ["Job", "JobStatus", "Jobs"]
