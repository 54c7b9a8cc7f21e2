"""`holdfast doctor`: what is wrong here, and what to do about it.

finding.py      the result of a check, and running a check within a time limit
examination.py  all checks in order
machine.py      settings, this machine, needed extras, and who may read or write the files
store.py        the store: path, disk space, answers, schema; clocks
services.py     tmux, the message broker, gateways, the server
records.py      damaged records, and what dead processes left

A check only reads: it changes no record, journal entry, setting or permission.
"""

from holdfast.runtime.doctor.examination import examine
from holdfast.runtime.doctor.finding import Finding, Severity

__all__ = ["Finding", "Severity", "examine"]
