"""Print the path of the newest Python on this machine that is newer than the one that runs this;
otherwise say so on stderr.

An interpreter counts when it runs: pyenv puts a `python3.13` on the PATH that only says that
another version is active. What pyenv has installed is therefore asked of pyenv itself.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

PROBE = """
import sys, sqlite3, ssl, venv
if sys.version_info.releaselevel == "final":
    print("%d.%d" % sys.version_info[1:3], sys.executable)
"""
TIMEOUT_S = 60


def main() -> None:
    """Print the path of the newest one, and on stderr what happens with it."""
    ours = sys.version_info.minor
    minor, micro, program = max(filter(None, map(_probed, _paths())), default=(0, 0, ""))
    if minor > ours:
        print(f"the newest Python on this machine is 3.{minor}.{micro}: {program}", file=sys.stderr)
        print(program)
    else:
        print(
            f"no Python newer than 3.{ours} on this machine: the tests on a newer one are skipped",
            file=sys.stderr,
        )


def _paths() -> Iterator[str]:
    """Each `python3.N` on the PATH, and each version of pyenv."""
    for folder in os.get_exec_path():
        if os.path.isdir(folder):
            yield from (
                os.path.join(folder, name)
                for name in os.listdir(folder)
                if re.fullmatch(r"python3\.\d+", name)
            )
    if pyenv := shutil.which("pyenv"):
        for version in _output(pyenv, "versions", "--bare").split():
            if re.fullmatch(r"3\.\d+\.\d+", version):
                yield os.path.join(_output(pyenv, "prefix", version).strip(), "bin", "python")


def _probed(path: str) -> tuple[int, int, str] | None:
    """The version after `3.` and the program of an interpreter; None for one that does not run, is
    not released or lacks a module.
    """
    answer = re.fullmatch(r"(\d+)\.(\d+) (.+)", _output(path, "-c", PROBE).strip())
    return (int(answer[1]), int(answer[2]), answer[3]) if answer else None


def _output(*words: str) -> str:
    """What a program prints; nothing where it fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


if __name__ == "__main__":
    main()
