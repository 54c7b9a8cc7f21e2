"""What is wrong here, and how to mend it: `holdfast doctor`.

finding.py       what a check says, and how bad it is
rounds.py        all checks in order, each within its time limit
configured.py    the settings, this machine, the extras that are needed
stored.py        the store: where it lies, its room, whether it answers and is understood; clocks
permitted.py     who else may read or write what is kept
reached.py       tmux, the message broker, gateways, the server
left.py          what the dead left behind, and what is yet to be told

A check looks and changes nothing: no record, no entry of the journal, no setting, no permission.
"""

from holdfast.doctor.finding import Finding, Verdict
from holdfast.doctor.rounds import examine

__all__ = ["Finding", "Verdict", "examine"]
