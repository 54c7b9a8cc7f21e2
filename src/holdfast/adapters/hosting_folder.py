"""The folder of the process that hosts the gateways of all agents of a user on this machine.

    lock           held by the process that hosts, for as long as it lives
    hosting.json   which process that is or was, and the state of each gateway
    log            what a host wrote that was started in the background; the one before is log.1

The folder is 0700 and its files 0600 whatever the umask.
"""

import contextlib
import os
from pathlib import Path
from typing import Literal

import msgspec

from holdfast.kernel.codec import Plain, to_json
from holdfast.kernel.errors import EnvironmentUnavailable
from holdfast.kernel.holder import Holder
from holdfast.kernel.limits import HOSTING_LOG_BYTES_MAX, HOSTING_LOG_TAIL_LINES
from holdfast.system.access import make_private_folder, open_file, read_file, replace_file
from holdfast.system.flock import FlockContender, FlockLock

_TAIL_BYTES = 16 << 10

HostingState = Literal["starting", "serving", "held", "detached", "failed"]


class HostedGateway(Plain, frozen=True, kw_only=True):
    """One gateway of a host. `detail` says why it is not served."""

    agent: str
    """The key of the gateway."""
    agent_id: str
    generation_id: str
    state: HostingState
    detail: str = ""


class HostingRecord(Plain, frozen=True, kw_only=True):
    """The process that hosts, the command that it runs, and its gateways."""

    schema_version: int = 1
    process: Holder
    program: str
    gateways: tuple[HostedGateway, ...] = ()


class HostingFolder:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = root / "log"
        self._lock = root / "lock"
        self._record = root / "hosting.json"

    def prepare(self) -> None:
        """Make the folder. Raises EnvironmentUnavailable when it cannot be made."""
        try:
            make_private_folder(self.root)
        except OSError as error:
            raise EnvironmentUnavailable(
                f"the folder {self.root} of the host of gateways cannot be used "
                f"({error.strerror}): check its path and permissions",
                path=str(self.root),
                outcome="none",
            ) from None

    def contender(self) -> FlockContender:
        """One that wants to host. Raises StoreUnavailable."""
        return FlockLock(self._lock).contender()

    def is_hosted(self) -> bool:
        """Does a process host? Raises StoreUnavailable."""
        return FlockLock(self._lock).is_held()

    def write(self, record: HostingRecord) -> None:
        """Say who hosts what. Raises OSError."""
        content = msgspec.json.format(to_json(record), indent=2) + b"\n"
        # Not durable: no host survives the power loss that this would.
        replace_file(self._record, content, private=True)

    def read(self) -> HostingRecord | None:
        """What the host wrote last, also if it is gone; None without a record of this version."""
        try:
            return msgspec.json.decode(read_file(self._record, private=True), type=HostingRecord)
        except (OSError, msgspec.DecodeError):
            return None

    def open_log(self) -> int:
        """A descriptor that appends to the log. A long log is moved aside first. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            if self.log.stat().st_size > HOSTING_LOG_BYTES_MAX:
                os.replace(self.log, self.root / "log.1")
        return open_file(self.log, os.O_WRONLY | os.O_APPEND, private=True)

    def log_tail(self) -> str:
        """The last lines of the log."""
        try:
            with open(open_file(self.log, os.O_RDONLY, make=False, private=True), "rb") as file:
                file.seek(max(file.seek(0, os.SEEK_END) - _TAIL_BYTES, 0))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-HOSTING_LOG_TAIL_LINES:])
