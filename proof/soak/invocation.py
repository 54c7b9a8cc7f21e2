"""How a soak starts a `holdfast` command, with or without a planted fault."""

import os
import sys
from pathlib import Path

_ROOT = Path(__file__).parent.parent.parent
_PLANTED = """
import random, sys
from holdfast.surfaces.cli import entry
from proof.bugs import plant
plant(sys.argv.pop(1), random.Random())
entry.main()
"""


def program(plant: str = "") -> list[str]:
    """The words before those of the command itself."""
    return [
        sys.executable,
        *(["-c", _PLANTED, plant] if plant else ["-m", "holdfast.surfaces.cli.entry"]),
    ]


def environment(plant: str = "") -> dict[str, str]:
    """This process's environment, and the folder that a planted command loads the faults from."""
    around = dict(os.environ)
    if plant:
        around["PYTHONPATH"] = os.pathsep.join(
            [str(_ROOT), *filter(None, [around.get("PYTHONPATH")])]
        )
    return around
