"""The folder of a store's servers: the bearer token, and which process serves where.

    token                  for its owner alone
    ended-PORT.json        sessions of pages that were logged out before their end
    instance-PORT.json     the process that serves there, or did and was killed

The folder is 0700 and its files 0600 whatever the umask.
"""

from contextlib import closing
from pathlib import Path

import msgspec

from holdfast.kernel.codec import Plain, to_json
from holdfast.kernel.errors import EnvironmentUnavailable, Unavailable
from holdfast.kernel.holder import Holder, Liveness, Processes, probe
from holdfast.system.access import make_private_folder, read_file, remove_file, replace_file

_TIMEOUT_S = 5.0
_REFUSED = 401


def local_address(host: str) -> str:
    """The address to reach from this machine what is bound to `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


class ServerInstance(Plain, frozen=True, kw_only=True):
    schema_version: int = 1
    process: Holder
    host: str
    port: int

    @property
    def reached_at(self) -> str:
        """The address to reach it from this machine."""
        return local_address(self.host)


class ServerFolder:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.token = root / "token"

    def ended(self, port: int) -> Path:
        """The file of the sessions that were logged out of the server at a port."""
        return self.root / f"ended-{port}.json"

    def prepare(self) -> None:
        """Make the folder. Raises EnvironmentUnavailable when it cannot be made."""
        try:
            # For its owner alone, also where a group shares the store: the token allows everything.
            make_private_folder(self.root)
        except OSError as error:
            raise EnvironmentUnavailable(
                f"the server's folder {self.root} cannot be used ({error.strerror}): "
                "check its path and permissions",
                path=str(self.root),
                outcome="none",
            ) from None

    def write_instance(self, instance: ServerInstance, processes: Processes) -> None:
        """Record who serves, and remove the records of dead servers. Raises OSError."""
        for other in self.instances():
            if probe(other.process, processes, embedded=True) is Liveness.DEAD:
                self.remove_instance(other)
        content = msgspec.json.format(to_json(instance), indent=2) + b"\n"
        # Not durable: a server does not survive the power loss that its record would.
        replace_file(self._record(instance), content, private=True)

    def remove_instance(self, instance: ServerInstance) -> None:
        """Remove the record of a server, but not that of a later one at the same port."""
        path = self._record(instance)
        if _read(path) == instance:
            remove_file(path)

    def instances(self) -> list[ServerInstance]:
        """The servers that run, or did and were killed."""
        found = (_read(path) for path in sorted(self.root.glob("instance-*.json")))
        return [instance for instance in found if instance is not None]

    def living(self, processes: Processes) -> list[ServerInstance]:
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
        # Imported here, because it takes 10 ms and most users of this folder send no request.
        import http.client

        server = f"the server, process {instance.process.pid}"
        try:
            token = read_file(self.token, private=True).decode("ascii", "replace").strip()
            with closing(
                http.client.HTTPConnection(instance.reached_at, instance.port, timeout=_TIMEOUT_S)
            ) as connection:
                headers = {"Authorization": f"Bearer {token}"}
                connection.request("POST", "/v1/links", headers=headers)
                answer = connection.getresponse()
                content = answer.read()
            if answer.status == _REFUSED:
                raise Unavailable(
                    f"{server}, began with another token than {self.token} has: start it again",
                    outcome="none",
                )
            return str(msgspec.json.decode(content, type=dict[str, object])["url"])
        except FileNotFoundError:
            raise Unavailable(
                f"{self.token} is gone: start {server}, again for a new token", outcome="none"
            ) from None
        except (OSError, http.client.HTTPException, msgspec.DecodeError, KeyError) as error:
            raise Unavailable(
                f"{server}, does not answer at {instance.reached_at} port {instance.port} "
                f"({type(error).__name__}): see its log, or start it again",
                outcome="none",
            ) from None

    def _record(self, instance: ServerInstance) -> Path:
        return self.root / f"instance-{instance.port}.json"


def _read(path: Path) -> ServerInstance | None:
    try:
        return msgspec.json.decode(read_file(path, private=True), type=ServerInstance)
    except (OSError, msgspec.DecodeError):
        # It is missing, or of another version.
        return None
