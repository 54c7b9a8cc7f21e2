"""The file with the environment of an agent that its gateway starts.

The gateway is another process than the command that started the agent, and starts the agent again
after a crash or a reboot, when that command is long gone. So the variables are in a file, for the
agent's user alone, from the start of the agent to its stop. `agent_unattended.py` says which.
"""

import os
from collections.abc import Mapping

from holdfast.adapters.durable_write import atomic_durable_write
from holdfast.system.access import PRIVATE, make_private_folder, read_file

ENVIRONMENT_FOLDER = "start"
"""The folder below the agent's own: where a group shares the store, that one is the group's."""
ENVIRONMENT_FILE = "environment"


def write_environment(path: str, variables: Mapping[bytes, bytes]) -> None:
    """Replace the file, and make its folder; it survives a power loss, as the agent's record does.
    Raises OSError.
    """
    make_private_folder(os.path.dirname(path))
    # A variable can hold anything but a zero.
    data = b"\0".join(name + b"=" + value for name, value in variables.items())
    atomic_durable_write(path, data, access=PRIVATE)


def read_environment(path: str) -> dict[str, str]:
    """The variables in the file. Raises OSError, also for a file that others could have written."""
    entries = read_file(path, private=True).split(b"\0")
    pairs = (entry.partition(b"=") for entry in entries if entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
