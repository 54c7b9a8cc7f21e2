"""The description of the machine of a run, without names that identify it."""

import os
import platform
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import holdfast
from bench import environment, work
from bench.measure import Lab, Sample


def facts(lab: Lab, *, cleared: str) -> dict[str, str]:
    """The machine's description, a fact a line. `cleared` names the variables of the caller that
    the run has cleared.
    """
    with lab.folder() as folder:
        kind = _file_system(folder)
        sync = lab.race(prepare=work.prepare_file, cast=work.Append, seconds=1.0)(folder)
    commit = environment.commit()
    return {
        "Holdfast": holdfast.__version__ + (f", commit {commit}" if commit else ""),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "processor": f"{_processor()}, {len(os.sched_getaffinity(0))} cores",
        "load before the run": f"{os.getloadavg()[0]:.2f}",
        "kernel": f"{platform.system()} {platform.release()}",
        "file system": kind,
        "fdatasync of 4 KB": _sync(sync),
        "Python": platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
        "variables of the caller that were cleared": cleared.replace(",", ", ") or "none",
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return " ".join(value.split())
    return platform.machine()


def _file_system(folder: Path) -> str:
    """The type of the file system that a folder is on."""
    mounts = [line.split(" ") for line in Path("/proc/mounts").read_text().splitlines()]
    on = [(len(place), kind) for _, place, kind, *_ in mounts if folder.is_relative_to(place)]
    return max(on)[1] if on else "unknown"


def _sync(sample: Sample) -> str:
    return f"{sample.p50_s * 1e6:.0f} us (median), {sample.worst_s * 1e3:.1f} ms (worst)"
