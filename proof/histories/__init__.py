"""Linearizability of recorded histories: did everything happen as if one call came after the other?

Real processes write down what they call and what is answered (recorder.py), each with the instant
of a clock that all processes of a machine share. What a killed process called and never heard the
answer of stays pending: it may have taken effect at any time since, or not at all. A specification
says what a sequential object may do (specification.py and those beside it), and a search looks for
one order of all calls that it allows and that no instant contradicts (search.py). Where there is none, the
report names the shortest beginning of the history that shows it (check.py).

    recorder = Recorder(folder / "p1.history", process="p1")
    with recorder.call("acquire", ["router-1"], by="run-7", mode="exclusive", wait=True) as pending:
        pending.answer({"tokens": dict(locks.acquire(["router-1"], by="run-7").tokens)})
    ...
    report = check(read(folder.glob("*.history")), LockSpecification())
    assert not report.wrong, report.summary()

The search is that of Wing and Gong, with the states it has been in remembered, as Lowe does it. A
history is cut into parts that share no key, so that each search is small.

What it cannot see: that a call was slow, unless `late_s` says what is slow. Nor what nobody
recorded.
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
