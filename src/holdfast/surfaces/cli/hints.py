"""Commands that a message tells its reader to run, completed with the options that this command was
given.

Whoever writes the message does not know which store the command line chose. Without its options a
pasted command looks into another store, and finds nothing there. What the environment or
`holdfast.toml` chose needs no option.
"""

import re

from holdfast.surfaces.cli.areas import AREAS

STORE, NAMESPACE, REGISTRY_DIR = "store", "namespace", "registry_dir"

_given: dict[str, str] = {}
"""What was said on this command line."""

_COMMAND = rf"(?<![\w./-])holdfast ({'|'.join(AREAS)})\b(?![^`]*--help`)( [a-z-]+)?"
_ABOUT_NO_STORE = ("tour",)


def remember(name: str, value: str) -> None:
    """An option that chooses where things are looked up; the last one counts."""
    _given[name] = value


def forget() -> None:
    """Begin another command line."""
    _given.clear()


def completed(text: str) -> str:
    """The text with every command of ours as its reader can paste it."""
    if not _given or "holdfast " not in text:
        return text
    return re.sub(_COMMAND, _with_options, text)


def _with_options(found: "re.Match[str]") -> str:
    area, verb = found[1], found[2] or ""
    if area in _ABOUT_NO_STORE:
        return found[0]
    # Every command takes these two before its area. Only those about jobs take a folder of jobs,
    # behind the verb.
    before = _options(STORE, NAMESPACE)
    behind = _options(REGISTRY_DIR) if area == "jobs" and verb else ""
    return f"holdfast{before} {area}{verb}{behind}"


def _options(*names: str) -> str:
    # Here, since few commands have anything to complete.
    import shlex

    said = ((name.replace("_", "-"), _shown(_given[name])) for name in names if name in _given)
    return "".join(f" --{name} {shlex.quote(value)}" for name, value in said)


def _shown(value: str) -> str:
    """Without a database's password: messages end up in logs."""
    return re.sub(
        r"^(postgres(?:ql)?://[^:/@]*):[^@]*@|((?:ssl)?password=)[^&\s]*", _redacted, value
    )


def _redacted(found: "re.Match[str]") -> str:
    return f"{found[1]}:***@" if found[1] else f"{found[2]}***"
