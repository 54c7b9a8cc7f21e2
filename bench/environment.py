"""The environment of a run: without the caller's settings for Python and for Holdfast.

A setting such as PYTHONDONTWRITEBYTECODE doubles the time of a cold start, and nothing on the page
would show it.
"""

import compileall
import os
import subprocess
import sys
from pathlib import Path

import holdfast

_CLEARED = ("PYTHON", "HOLDFAST_")

SOURCE = Path(holdfast.__file__).parents[1]
"""The folder of the package that is measured. PYTHONPATH chooses another one."""


def restart_clean(arguments: list[str]) -> None:
    """Start the run again without the caller's settings, unless there are none. Only the folder of
    the measured package stays in PYTHONPATH, if it was there.
    """
    found = {name: value for name, value in os.environ.items() if name.startswith(_CLEARED)}
    keep = {"PYTHONPATH": str(SOURCE)} if str(SOURCE) in _path() else {}
    if found == keep:
        return
    environment = {name: value for name, value in os.environ.items() if name not in found}
    cleared = ",".join(sorted(set(found) - set(keep)))
    words = [
        sys.executable,
        "-m",
        "bench",
        *arguments,
        *(["--cleared", cleared] if cleared else []),
    ]
    os.execve(sys.executable, words, {**environment, **keep})


def compile_bytecode() -> None:
    """Compile the package and the benchmark, so that no measured process does."""
    for folder in (SOURCE / "holdfast", Path(__file__).parent):
        compileall.compile_dir(folder, quiet=2)


def commit() -> str:
    """The commit of the measured package, if it is a checkout."""
    words = ["git", "-C", str(SOURCE), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def _path() -> list[str]:
    """The folders of PYTHONPATH, as absolute paths."""
    found = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [os.path.abspath(one) for one in found if one]
