"""Which settings are in force here: what the caller says, the environment, the nearest
holdfast.toml; and where this user and this machine keep things by default.
"""

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.kernel import settings as settings_
from holdfast.kernel.errors import InvalidName, InvalidValue
from holdfast.kernel.names import check_label
from holdfast.kernel.settings import Settings
from holdfast.stores.url import StoreUrl, user_path

VARIABLE = "HOLDFAST_CONFIG"
"""Names the settings file, whose owner is not checked. Without it, the nearest one upwards is read.
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
