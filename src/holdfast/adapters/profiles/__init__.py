"""The profiles of tools: those that Holdfast has, as TOML files beside this module, and the user's
own.
"""

import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.kernel.agent_profile import Profile, profile_in
from holdfast.kernel.errors import InvalidValue, NotFound

_BUILT_IN = Path(__file__).parent
_SUFFIX = ".toml"
GENERIC = "generic"


def profiles_folder(environment: Mapping[str, str]) -> Path:
    """The folder of the user's own profiles."""
    config = environment.get("XDG_CONFIG_HOME") or os.path.join(
        environment.get("HOME") or os.path.expanduser("~"), ".config"
    )
    return Path(config) / "holdfast" / "profiles"


def profile_names(folder: Path) -> list[str]:
    """The names of all profiles: the user's own ones in that folder, and the built-in ones."""
    found = [*_BUILT_IN.glob(f"*{_SUFFIX}"), *folder.glob(f"*{_SUFFIX}")]
    return sorted({path.name.removesuffix(_SUFFIX) for path in found})


def profile_path(name: str, folder: Path) -> Path:
    """The file of a profile: the user's own one, else the built-in one."""
    own = folder / f"{name}{_SUFFIX}"
    return own if own.exists() else _BUILT_IN / f"{name}{_SUFFIX}"


def profile_named(name: str, folder: Path) -> Profile:
    """The profile of that name; the user's own one goes first. Raises NotFound for an unknown name,
    and InvalidValue for a profile that is wrong.
    """
    names = profile_names(folder)
    if name not in names:
        raise NotFound(
            f"there is no profile {name[:60]!a}: use one of {', '.join(names)}, or write "
            f"{folder}/{name[:60]}{_SUFFIX}",
            profile=name[:60],
        )
    path = profile_path(name, folder)
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidValue(
            f"the profile {path} cannot be read: {error}", field="profile", profile=name
        ) from None
    return profile_in(document, name, str(path))


def profile_for(command: Sequence[str], folder: Path) -> Profile:
    """The profile of the tool that a command starts, by the command's name; the generic one for an
    unknown command. Raises InvalidValue.
    """
    program = os.path.basename(command[0])
    profiles = (profile_named(name, folder) for name in profile_names(folder))
    return next(
        (one for one in profiles if program in one.programs), profile_named(GENERIC, folder)
    )
