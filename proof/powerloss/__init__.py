"""The power-loss simulator: does what was acknowledged survive when the power goes?

kill -9 proves nothing about fsync, because the page cache survives it. So a workload of real
processes runs under strace (recording.py), and the calls it made are read back as operations on a
disk (calls.py, tree.py, descriptors.py, trace.py). A model of that disk keeps apart what was synced
and what was only written (disk.py), and for thousands of instants a folder is built that holds all
of the one and a random part of the other (points.py, states.py). A check of the caller's opens each
folder and says what is wrong with it (examination.py).

    recording = record([sys.executable, "workload.py"], folder=tmp_path)
    report = examine(recording.trace(), check, states=3000, seed=1)
    assert not report.failures, report.summary()

The workload writes below `recording.root`, and acknowledges a change by a write to
`recording.acknowledgements`: the order of that write among the others is what "acknowledged before
the power went" means. Nothing here knows of SQLite.

What a state may be, beyond what was synced: of the writes to a file any part, each of them torn at
its 512-byte sectors; a longer file with zeros in it; of the changes to a folder any beginning,
whatever was done to the files in them. A file's sync keeps its content and its size, not its name;
only its folder's does.

Not covered: a disk that lies about a sync, or damages what it was not writing; a file system that
reorders the changes of one folder; a sync that fails. A rename from one folder to another may show
in either, both or none. Modes, owners and times are not kept. Writes through a shared mapping are
not seen: such files are named to `trace`, and are filled with noise. Symbolic links, and old calls
with a path that is not absolute, are not followed. What else the model cannot follow is refused by
a TraceError, never passed over.
"""

from proof.powerloss.calls import TraceError
from proof.powerloss.examination import Check, Failure, Report, Verdict, examine
from proof.powerloss.recording import Recording, TracerMissing, record, why_not
from proof.powerloss.trace import Trace

__all__ = [
    "Check",
    "Failure",
    "Recording",
    "Report",
    "Trace",
    "TraceError",
    "TracerMissing",
    "Verdict",
    "examine",
    "record",
    "why_not",
]
