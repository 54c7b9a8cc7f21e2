"""Which settings are in force here: what the caller says, the environment, the nearest holdfast.toml; and where this user and
this machine keep things by default."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.kernel import settings as settings_
from holdfast.kernel.errors import InvalidName, InvalidValue
from holdfast.kernel.names import check_label
from holdfast.kernel.settings import Settings
from holdfast.stores.opening import sqlite_path


def load_settings(*, store: str | None = None, namespace: str | None = None) -> Settings:
    """The settings in force here, with what the caller gave before everything else.

    Raises InvalidValue for wrong ones, an empty text from the caller included: it is more often a variable that was not set
    than a wish for the default.
    """
    for name, value in (("store", store), ("namespace", namespace)):
        if value == "":
            raise InvalidValue(f"the {name} given is empty: name one, or leave it out for the default", field=name)
    path = _nearest_file()
    document: dict[str, Any] = {} if path is None else _read(path)
    if path is not None and isinstance(document.get("store"), str):
        document["store"] = _from_folder(document["store"], path.parent)
    return settings_.resolve(
        given={"store": store, "namespace": namespace},
        environment=os.environ,
        document=document,
        source=str(path or settings_.FILE_NAME),
    )


def store_origin() -> str:
    """What chooses the store here when the caller does not: a variable, a file's path, or `default`."""
    if os.environ.get("HOLDFAST_STORE"):
        return "HOLDFAST_STORE"
    path = _nearest_file()
    return str(path) if path is not None and "store" in _read(path) else "default"


def default_store(environment: Mapping[str, str]) -> str:
    """The SQLite file in the user's state folder. Raises InvalidValue without a home."""
    return f"sqlite:{state_folder(environment) / 'store.sqlite'}"


def state_folder(environment: Mapping[str, str]) -> Path:
    """The user's state folder, by the platform's convention. Raises InvalidValue without a home."""
    state = environment.get("XDG_STATE_HOME", "")
    # The convention says that a relative path there is to be ignored.
    if not os.path.isabs(state):
        state = "~/.local/state"
    return sqlite_path(state) / "holdfast"


def _nearest_file() -> Path | None:
    try:
        folder = Path.cwd()
    except OSError as error:
        raise InvalidValue(f"the working folder cannot be used ({error.strerror}): cd to one that is there") from None
    for parent in (folder, *folder.parents):
        path = parent / settings_.FILE_NAME
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise InvalidValue(
                f"cannot look for {path} ({error.strerror}): cd to a folder whose parents you may enter", source=str(path)
            ) from None
        if path.is_file():
            return path
    return None


def _read(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise InvalidValue(
            f"{path} is not TOML: {error}. Texts stand in quotes; docs/settings.md shows a whole file", source=str(path)
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValue(f"{path} cannot be read: {error}", source=str(path)) from None
    except RecursionError:
        raise InvalidValue(f"{path} cannot be read: it is nested too deeply", source=str(path)) from None


def _from_folder(url: str, folder: Path) -> str:
    """A relative path in a file means relative to that file, wherever the command is run."""
    scheme, _, rest = url.partition(":")
    if scheme in ("sqlite", "files") and rest and not rest.startswith(("/", "~")):
        return f"{scheme}:{folder / rest}"
    return url


def workflow_here(environment: Mapping[str, str]) -> tuple[str, int] | None:
    """Name and token of the workflow under whose `holdfast workflows run` this process was started; None without one."""
    name, token = environment.get("HOLDFAST_WORKFLOW", ""), environment.get("HOLDFAST_WORKFLOW_TOKEN", "")
    return (name, int(token)) if name and token.isascii() and token.isdigit() else None


def actor_here() -> str:
    """Whom the journal names unless told: the user and process."""
    for name in (os.environ.get("USER"), os.environ.get("LOGNAME")):
        if name:
            try:
                return check_label(f"{name[:64]}/{os.getpid()}")
            except InvalidName:
                continue
    return f"uid-{os.getuid()}/{os.getpid()}"
