"""Which settings are in force here: what the caller says, the environment, the nearest
holdfast.toml; where this user and this machine keep things by default; and the places beside a
store: folders of its files, signal files, the audit log of jobs, gateways, its server's folder.
"""

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from holdfast.kernel import settings as settings_
from holdfast.kernel.errors import EnvironmentUnavailable, InvalidName, InvalidValue
from holdfast.kernel.layout import Sign
from holdfast.kernel.names import check_label
from holdfast.kernel.settings import FilesSettings, Settings
from holdfast.kernel.space import Space
from holdfast.kernel.store import Store
from holdfast.stores.url import StoreUrl, user_path
from holdfast.system.access import Access, access_for, access_like

VARIABLE = "HOLDFAST_CONFIG"
"""Names the settings file, whose owner is not checked. Without it, the nearest one upwards is read.
"""


REGISTRY_DIR_ENV = "HOLDFAST_REGISTRY_DIR"
"""Names the folder of jobs of the worker around a command. The command works there unless it is
given another place.
"""


def load_settings(*, store: str | None = None, namespace: str | None = None) -> Settings:
    """The settings in force here; what the caller gave comes first.

    Raises InvalidValue for wrong ones, also for an empty text from the caller: that is mostly a
    shell variable that was not set.
    """
    for name, value in (("store", store), ("namespace", namespace)):
        if value == "":
            raise InvalidValue(
                f"the {name} given is empty: name one, or leave it out for the default", field=name
            )
    path, document = _file() or (None, {})
    if path is not None and isinstance(document.get("store"), str):
        # A relative path in a file is relative to that file, wherever the command is run.
        document["store"] = StoreUrl(document["store"]).relative_to(path.parent)
    return settings_.resolve(
        given={"store": store, "namespace": namespace},
        environment=os.environ,
        document=document,
        source=str(path or settings_.FILE_NAME),
    )


def store_origin() -> str:
    """What chooses the store unless the caller does: a variable, a file's path, or `default`."""
    if os.environ.get("HOLDFAST_STORE"):
        return "HOLDFAST_STORE"
    path, document = _file() or (None, {})
    return str(path) if "store" in document else "default"


def store_url(settings: Settings) -> StoreUrl:
    """The store that is used by these settings. Raises InvalidValue without a home."""
    return StoreUrl(settings.store or default_store(os.environ))


def default_store(environment: Mapping[str, str]) -> str:
    """The SQLite file in the user's state folder. Raises InvalidValue without a home."""
    return f"sqlite:{state_folder(environment) / 'store.sqlite'}"


def state_folder(environment: Mapping[str, str]) -> Path:
    """The user's state folder, by the platform's convention. Raises InvalidValue without a home."""
    state = environment.get("XDG_STATE_HOME", "")
    # The convention says to ignore a relative path there.
    if not os.path.isabs(state):
        state = "~/.local/state"
    return user_path(state) / "holdfast"


def _file() -> tuple[Path, dict[str, Any]] | None:
    """The settings file and its content: the named one, else the nearest one upwards. Raises
    InvalidValue.
    """
    try:
        folder = Path.cwd()
    except OSError as error:
        raise InvalidValue(
            f"the working folder cannot be used ({error.strerror}): cd to one that is there"
        ) from None
    if named := os.environ.get(VARIABLE):
        path = folder / named
        return path, _parsed(path, _content(path, trusted=True) or b"")
    for parent in (folder, *folder.parents):
        path = parent / settings_.FILE_NAME
        try:
            found = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise InvalidValue(
                f"cannot look for {path} ({error.strerror}): cd to a folder whose parents you may "
                "enter",
                source=str(path),
            ) from None
        if stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode):
            # The owner of a link chooses the file, so both are checked.
            _refuse_foreign(path, found)
            if (content := _content(path, trusted=False)) is not None:
                return path, _parsed(path, content)
    return None


def _content(path: Path, *, trusted: bool) -> bytes | None:
    """The content of a file, which is opened once: between a check and a second open it could be
    replaced. None where there is no plain file. Raises InvalidValue.
    """
    try:
        # Opening a FIFO waits for its writer: wanted if the user named it, and not if it was found.
        fd = os.open(
            path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | (0 if trusted else os.O_NONBLOCK)
        )
    except OSError as error:
        if not trusted and isinstance(error, FileNotFoundError):
            return None
        raise _unreadable(path, error) from None
    try:
        found = os.fstat(fd)
        if not trusted:
            if not stat.S_ISREG(found.st_mode):
                return None
            _refuse_foreign(path, found)
        with open(fd, "rb", closefd=False) as file:
            return file.read()
    except OSError as error:
        raise _unreadable(path, error) from None
    finally:
        os.close(fd)


def _unreadable(path: Path, error: OSError) -> InvalidValue:
    return InvalidValue(
        f"{path} cannot be read ({error.strerror}): name a holdfast.toml that you may read, or "
        f"unset {VARIABLE}",
        source=str(path),
    )


def _refuse_foreign(path: Path, found: os.stat_result) -> None:
    """Raise InvalidValue for a found file that is neither this user's nor root's: it chooses the
    store, and so which prompts and commands are run. Under sudo, files of the caller count as well.
    """
    mine = {os.geteuid(), 0}
    if os.geteuid() == 0 and (caller := os.environ.get("SUDO_UID", "")).isdecimal():
        mine.add(int(caller))
    if found.st_uid not in mine:
        why = f"it belongs to user {found.st_uid}, and you are {os.geteuid()}"
    elif found.st_mode & stat.S_IWOTH and stat.S_ISREG(found.st_mode):
        why = "everybody may write it"
    else:
        return
    raise InvalidValue(
        f"{path} is not obeyed ({why}): if you trust it, set {VARIABLE}={path}; to go on without "
        f"it, {VARIABLE}=/dev/null",
        source=str(path),
    )


def _parsed(path: Path, content: bytes) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(content.decode())
    except tomllib.TOMLDecodeError as error:
        raise InvalidValue(
            f"{path} is not TOML: {error}. Texts stand in quotes; docs/settings.md shows a whole "
            "file",
            source=str(path),
        ) from None
    except UnicodeDecodeError as error:
        raise InvalidValue(f"{path} cannot be read: {error}", source=str(path)) from None
    except RecursionError:
        raise InvalidValue(
            f"{path} cannot be read: it is nested too deeply", source=str(path)
        ) from None


def workflow_here(environment: Mapping[str, str]) -> tuple[str, int] | None:
    """Name and token of the workflow under whose `holdfast workflows run` this process was started;
    None without one.
    """
    name = environment.get("HOLDFAST_WORKFLOW", "")
    token = environment.get("HOLDFAST_WORKFLOW_TOKEN", "")
    return (name, int(token)) if name and token.isascii() and token.isdigit() else None


def actor_here() -> str:
    """The actor that the journal names by default: the user and process."""
    for name in (os.environ.get("USER"), os.environ.get("LOGNAME")):
        if name:
            try:
                return check_label(f"{name[:64]}/{os.getpid()}")
            except InvalidName:
                continue
    return f"uid-{os.getuid()}/{os.getpid()}"


PLACES = {"agents": ".", "network": ".", "network_locks": "locks", "workflows": "."}
"""Where a files store has the folders of layouts, relative to its root. Any other layout has a
folder of its own name.
"""


def placed(files: FilesSettings) -> FilesSettings:
    """The settings of a files store with the default folders, where they name no others."""
    return replace(files, folders={**PLACES, **files.folders})


def shown_in_files() -> Mapping[Space[Any], Sign[Any]]:
    """The records of the lock table that are also files, for people who read the folder. It is here
    because locks are a primitive's, and routers a domain's.
    """
    from holdfast.domains.network.wire import ROUTER_SIGN
    from holdfast.primitives.locks.records import LOCKS

    return {LOCKS: ROUTER_SIGN}


def signal_folder_of(store: Store) -> Path:
    """The default folder of signal files: beside the store, else in the user's state folder."""
    return (store.side_folder("signals") or state_folder(os.environ) / "signals") / store.namespace


def tree_folder_of(store: Store) -> Path | None:
    """The folder of the FIFOs of process trees: beside the store, else in the user's state folder;
    None for a store that ends with its process.
    """
    if store.ephemeral:
        return None
    return store.side_folder("trees") or state_folder(os.environ) / "trees"


def job_logs(settings: Settings, store: Store, jobs_folder: Path | None) -> Path | None:
    """The folder of the audit log of jobs: as the environment or the settings say, else beside the
    store, or beside a shared folder of jobs, where other programs expect it.
    """
    chosen = os.environ.get("DELEGATE_JOB_LOGS_DIR") or settings.jobs.logs
    if chosen:
        return user_path(chosen)
    if jobs_folder is not None:
        return jobs_folder.parent / "delegate_job_logs"
    url = store_url(settings)
    if url.ephemeral:
        return None
    suffix = "" if store.namespace == settings_.DEFAULT_NAMESPACE else f".{store.namespace}"
    return url.job_logs(suffix) or state_folder(os.environ) / f"job-logs{suffix}"


def access_in(settings: Settings, store: Store) -> Access:
    """Who may use new files beside a store: the users of the store or, where it has no files, those
    whom the settings name.
    """
    return access_for(settings.group) if store.anchor is None else access_like(store.anchor)


def gateway_agent(agent: str) -> str:
    """The name of an agent's gateway, the same for all forms of the agent's name: otherwise one
    agent could have two gateways. Raises InvalidName.
    """
    from holdfast.domains.agents.records import inner

    return inner(agent)


def gateway_root(settings: Settings, agent: str) -> Path:
    """The folder of an agent's gateway. Raises InvalidName."""
    return gateways_folder(settings) / settings.namespace / gateway_agent(agent)


def gateways_here(settings: Settings) -> list[str]:
    """The agents that have, or had, a gateway on this machine, by name."""
    try:
        with os.scandir(gateways_folder(settings) / settings.namespace) as found:
            return sorted(folder.name for folder in found if folder.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise EnvironmentUnavailable(
            f"the folder of the gateways cannot be read: {error}", outcome="none"
        ) from None


def agent_runs_folder(settings: Settings) -> Path:
    """The folder of the notes of agents' last runs, of one store and one user. Raises InvalidValue
    without a home.
    """
    name = store_url(settings).state_name()
    return state_folder(os.environ) / "agent-runs" / name / settings.namespace


def server_root(settings: Settings) -> Path:
    """The folder of a store's server: beside a file or a folder, else in the user's state
    folder.
    """
    url = store_url(settings)
    folder = url.server_folder() or state_folder(os.environ) / "server" / url.state_name()
    return folder / settings.namespace


def gateways_folder(settings: Settings) -> Path:
    """The folder of all gateways of one store, in all its namespaces: `gateway_root`, else beside
    the SQLite store, else in the user's state folder. Agents of one name in two stores are two
    agents.
    """
    if settings.gateway_root is not None:
        return user_path(settings.gateway_root).absolute()
    url = store_url(settings)
    return url.gateways_folder() or state_folder(os.environ) / "gateways" / url.state_name()


def hosting_root(settings: Settings) -> Path:
    """The folder of the process that hosts the gateways of a namespace, for this user alone: also
    where a group shares the store, each user's gateways have a host of their own.
    """
    from hashlib import sha256

    gateways = gateways_folder(settings) / settings.namespace
    name = sha256(bytes(gateways)).hexdigest()[:12]
    return state_folder(os.environ) / "gateway-hosts" / name
