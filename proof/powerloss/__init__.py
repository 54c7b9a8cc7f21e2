"""The power-loss simulator: does what was acknowledged survive when the power goes?

kill -9 proves nothing about fsync, because the page cache survives it. So a workload of real
processes runs under strace (recording.py), and its calls are read back as operations on a disk
(calls.py, tree.py, descriptors.py, trace.py). A model of that disk separates synced data from data
that was only written (disk.py). For thousands of instants a folder is built that holds all synced
data and a random part of the rest (points.py, states.py). The caller's check opens each folder and
reports what is wrong with it (examination.py).

    recording = record([sys.executable, "workload.py"], folder=tmp_path)
    report = examine(recording.trace(), check, states=3000, seed=1)
    assert not report.failures, report.summary()

The workload writes below `recording.root`, and acknowledges a change by a write to
`recording.acknowledgements`: the order of that write among the others is what "acknowledged before
the power went" means. Nothing here knows of SQLite.

Besides the synced data, a state may contain any of the later writes to a file, each torn at its
512-byte sectors; a longer file with zeros in it; and any prefix of the later changes to a folder.
The sync of a file keeps its content and its size, not its name; only the sync of its folder does.

Not covered: a disk that lies about a sync, or damages data that it was not writing; a file system
that reorders the changes of one folder; a sync that fails. A rename from one folder to another may
show in either, both or none. Modes, owners and times are not kept. Writes through a shared mapping
are not seen: name such files to `trace`, which fills them with noise. Symbolic links, and old calls
with a relative path, are not followed. Everything else that the model cannot follow raises a
TraceError.
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
