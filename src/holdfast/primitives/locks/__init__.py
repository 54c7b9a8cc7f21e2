"""Locks on resources: who holds them, and who is next."""

from holdfast.primitives.locks.grant import Grant
from holdfast.primitives.locks.manager import Locks
from holdfast.primitives.locks.records import Mode

__all__ = ["Grant", "Locks", "Mode"]
