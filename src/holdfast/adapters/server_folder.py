"""The folder of a store's servers: the bearer token, and which process serves where.

    token                  for its owner alone
    ended-PORT.json        sessions of pages that were logged out before their end
    instance-PORT.json     the process that serves there, or did and was killed

The folder is 0700 and its files 0600 whatever the umask.
"""

import http.client
from contextlib import closing
from pathlib import Path

import msgspec

from holdfast.adapters.durable_write import atomic_durable_write
from holdfast.kernel.codec import Plain, to_json
from holdfast.kernel.errors import StoreUnavailable, Unavailable
from holdfast.kernel.holder import Holder, Liveness, Processes, probe
from holdfast.system.access import make_private_folder, read_private_file, remove_file

_TIMEOUT_S = 5.0
_REFUSED = 401


class ServerInstance(Plain, frozen=True, kw_only=True):
    """The process that serves, and where."""

    schema_version: int = 1
    process: Holder
    host: str
    port: int

    @property
    def reached_at(self) -> str:
        """The address by which it is reached from this machine."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)


class ServerFolder:
    """The folder of one store's server."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.token = root / "token"

    def ended(self, port: int) -> Path:
        """The file of the sessions that were logged out of the server at a port."""
        return self.root / f"ended-{port}.json"

    def prepare(self) -> None:
        """Make it. Raises StoreUnavailable when it cannot be made."""
        try:
            # For its owner alone where a group shares the store too: the token lets whoever has it
            # do everything.
            make_private_folder(self.root)
        except OSError as error:
            raise StoreUnavailable(
                f"the server's folder {self.root} cannot be used: {error}", outcome="none"
            ) from None

    def write_instance(self, instance: ServerInstance, processes: Processes) -> None:
        """Say who serves, and forget those that were killed. Others that live stay."""
        for other in self.instances():
            if probe(other.process, processes, embedded=True) is Liveness.DEAD:
                self.remove_instance(other)
        told = msgspec.json.format(to_json(instance), indent=2) + b"\n"
        atomic_durable_write(self._note(instance), told, mode=0o600)

    def remove_instance(self, instance: ServerInstance) -> None:
        """Say that this one serves no more; another that came since stays."""
        note = self._note(instance)
        if _read(note) == instance:
            remove_file(note)

    def instances(self) -> list[ServerInstance]:
        """Who serves, or did and was killed."""
        found = (_read(note) for note in sorted(self.root.glob("instance-*.json")))
        return [instance for instance in found if instance is not None]

    def living(self, processes: Processes) -> list[ServerInstance]:
        """Those who serve and whose process is alive."""
        return [
            one
            for one in self.instances()
            if probe(one.process, processes, embedded=True) is Liveness.ALIVE
        ]

    def new_link(self, processes: Processes) -> str:
        """Ask the server for a one-time link. Raises Unavailable when none runs or answers."""
        instance = next(iter(self.living(processes)), None)
        if instance is None:
            raise Unavailable(
                "no server of this store runs here: start one with `holdfast serve`", outcome="none"
            )
        server = f"the server, process {instance.process.pid}"
        try:
            token = read_private_file(self.token).decode("ascii", "replace").strip()
            status, answer = _asked(instance, token)
            if status == _REFUSED:
                raise Unavailable(
                    f"{server}, began with another token than {self.token} has: start it again",
                    outcome="none",
                )
            return str(msgspec.json.decode(answer, type=dict[str, object])["url"])
        except FileNotFoundError:
            raise Unavailable(
                f"{self.token} is gone: start {server}, again for a new token", outcome="none"
            ) from None
        except (OSError, http.client.HTTPException, msgspec.DecodeError, KeyError) as error:
            raise Unavailable(
                f"{server}, does not answer at {instance.reached_at} port {instance.port} "
                f"({type(error).__name__}): see its "
                "log, or start it again",
                outcome="none",
            ) from None

    def _note(self, instance: ServerInstance) -> Path:
        return self.root / f"instance-{instance.port}.json"


def _read(note: Path) -> ServerInstance | None:
    try:
        return msgspec.json.decode(read_private_file(note), type=ServerInstance)
    except (OSError, msgspec.DecodeError):
        # Not there, or of another version: whoever asks does without.
        return None


def _asked(instance: ServerInstance, token: str) -> tuple[int, bytes]:
    """The status and the answer of a server that is asked for a link."""
    with closing(
        http.client.HTTPConnection(instance.reached_at, instance.port, timeout=_TIMEOUT_S)
    ) as connection:
        connection.request("POST", "/v1/links", headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return answer.status, answer.read()
