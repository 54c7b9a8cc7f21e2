"""The description of the machine of a run, without names that identify it."""

import os
import platform
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import holdfast
from bench import work
from bench.measure import Lab, Sample
from holdfast.stores.sqlite.filesystem import type_of


def facts(lab: Lab) -> dict[str, str]:
    """The machine's description, a fact a line."""
    with lab.folder() as folder:
        kind = type_of(folder)
        sync = lab.race(prepare=work.prepare_file, cast=work.Append, seconds=1.0)(folder)
    return {
        "Holdfast": holdfast.__version__,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "processor": f"{_processor()}, {len(os.sched_getaffinity(0))} cores",
        "load before the run": f"{os.getloadavg()[0]:.2f}",
        "kernel": f"{platform.system()} {platform.release()}",
        "file system": kind,
        "fdatasync of 4 KB": _sync(sync),
        "Python": platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return " ".join(value.split())
    return platform.machine()


def _sync(sample: Sample) -> str:
    return f"{sample.p50_s * 1e6:.0f} us (median), {sample.worst_s * 1e3:.1f} ms (worst)"
