"""Linearizability of recorded histories: did everything happen as if one call came after the other?

Real processes record their calls and answers (recorder.py), each with the time of a clock that all
processes of a machine share. A call without an answer, as of a killed process, stays pending: it may
have taken effect at any time since, or not at all. A specification gives the rules of a sequential
object (specification.py and its neighbours). A search looks for an order of all calls that these
rules allow and no time contradicts (search.py). If there is none, the report names the shortest
beginning of the history that has no order (check.py).

    recorder = Recorder(folder / "p1.history", process="p1")
    with recorder.call("acquire", ["router-1"], by="run-7", mode="exclusive", wait=True) as pending:
        pending.answer({"tokens": dict(locks.acquire(["router-1"], by="run-7").tokens)})
    ...
    report = check(read(folder.glob("*.history")), LockSpecification())
    assert not report.wrong, report.summary()

The search is that of Wing and Gong, and remembers its states, as Lowe's does. A history is cut into
parts that share no key, so that each search is small.

It does not find slow calls, unless `late_s` says what is slow.
"""

from proof.histories.check import Report, check
from proof.histories.claims import ClaimSpecification
from proof.histories.counts import CountSpecification
from proof.histories.fifo import FifoSpecification
from proof.histories.locks import LockSpecification
from proof.histories.operation import NEVER, Operation
from proof.histories.recorder import Recorder, died, read
from proof.histories.specification import Specification

__all__ = [
    "NEVER",
    "ClaimSpecification",
    "CountSpecification",
    "FifoSpecification",
    "LockSpecification",
    "Operation",
    "Recorder",
    "Report",
    "Specification",
    "check",
    "died",
    "read",
]
