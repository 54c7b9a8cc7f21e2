"""Importing libraries without the parts that a short command does not need."""

import os
import sys
from types import ModuleType

# Type checkers know this name; importing it from `typing` would cost more than `--version`.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any


class _Later(ModuleType):
    """Stands for a module, which is loaded when something of it is used."""

    def __getattr__(self, name: str) -> "Any":
        if name == "__path__":
            # Every `from` import looks for it.
            raise AttributeError(name)
        from importlib import import_module

        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


def import_msgspec() -> None:
    """Import msgspec and pathlib without modules that they can do without: 6 ms, an eighth of a
    short command.

    msgspec takes typing_extensions where that is installed, and falls back to `typing`, which has
    all it needs since Python 3.11. `uuid` asks `platform` only whether this is AIX. JSON schemas
    need `textwrap` and `msgspec.inspect`. Addresses in brackets need `ipaddress`, only a path as a
    URI needs `urllib.parse`, a pattern of paths `fnmatch`, and a path of Windows `ntpath`.
    """
    if "msgspec" in sys.modules:
        return
    platform = _Later("platform")
    platform.system = lambda: os.uname().sysname  # type: ignore[attr-defined]
    stand_ins = {"platform": platform, "textwrap": _Later("textwrap")}
    for name in (
        *("ipaddress", "urllib.parse", "fnmatch", "ntpath"),
        *("msgspec.inspect", "msgspec.toml", "msgspec.yaml"),
    ):
        stand_ins[name] = _Later(name)
    stand_ins["urllib.parse"].quote_from_bytes = _quote  # type: ignore[attr-defined]
    before = set(sys.modules)
    sys.modules.setdefault("typing_extensions", None)  # type: ignore[arg-type]
    for name, module in stand_ins.items():
        sys.modules.setdefault(name, module)
    try:
        import pathlib  # noqa: F401

        import msgspec  # noqa: F401
    finally:
        for name in {"typing_extensions", *stand_ins} - before:
            if sys.modules.get(name) is stand_ins.get(name):
                sys.modules.pop(name, None)


def _quote(path: bytes) -> str:
    """What `pathlib` takes from `urllib.parse` by name when it is loaded."""
    from urllib.parse import quote_from_bytes

    return quote_from_bytes(path)
