"""A writer of whole files, to be run under strace: write beside, sync, rename over, sync the
folder, acknowledge.

The check knows what the simulator does not: that each file holds one of the numbers written to it,
whole, and none older than the last acknowledged one. Bugs are planted by leaving a step out.
"""

import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from proof.powerloss import Verdict

FILES = 3
TIMES = 20
BYTES = 1500


def content(number: int) -> bytes:
    return f"{number:08}".encode() * (BYTES // 8)


def check(root: Path, acknowledged: Sequence[bytes], rng: random.Random) -> Verdict:
    wrong = []
    for file in range(FILES):
        promised = [
            int(message.split()[1]) for message in acknowledged if int(message.split()[0]) == file
        ]
        path = root / "deep" / "folder" / str(file)
        found = path.read_bytes() if path.exists() else b""
        number = int(found[:8]) if found[:8].isdigit() else 0
        if found and found != content(number):
            wrong.append(f"file {file} is torn")
        elif promised and number < promised[-1]:
            wrong.append(f"file {file} is back at {number} from {promised[-1]}")
    return Verdict(wrong)


def main(left_out: str, root: str, acknowledgements: str) -> None:
    promises = os.open(acknowledgements, os.O_WRONLY | os.O_APPEND)
    folder = Path(root) / "deep" / "folder"
    folder.mkdir(parents=True)
    for parent in (folder.parent, Path(root)):
        if left_out != "parents":
            sync(parent)
    for number in range(1, TIMES + 1):
        for file in range(FILES):
            beside = folder / f".{file}-{number}"
            with beside.open("wb", buffering=0) as raw:
                raw.write(content(number)[:700])
                raw.write(content(number)[700:])
                if left_out != "file":
                    os.fsync(raw.fileno())
            beside.rename(folder / str(file))
            if left_out != "folder":
                sync(folder)
            os.write(promises, f"{file} {number}".encode())


def sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


if __name__ == "__main__":
    main(*sys.argv[1:])
