"""The shape of JSON values: a line for each path with the kinds of values that were found there.

    job_id: str
    holder: null | object
    holder.pid: int
    requests[].state: "accepted" | "completed"

Lines keep the order of the keys. Values that differ between runs and machines are shown as their
type; `true`, `false`, `null` and words of a fixed vocabulary are shown as they are.
"""

import getpass
import json
import re
import socket
from collections.abc import Iterable, Iterator
from typing import Any

_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)?")
_WORD = re.compile(r"[a-z][a-z_]+")
_RANDOM_KEYS = re.compile(r"(.*_)?id|sig|requests|left|text|screen")
_ID = re.compile(
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<![A-Za-z0-9])[0-9a-f]{12,}(?![A-Za-z0-9])"
)


class _Node:
    """What was found at one path."""

    def __init__(self) -> None:
        self.kinds: set[str] = set()
        self.seen = 0
        self.objects = 0
        self.members: dict[str, _Node] = {}
        self.items: _Node | None = None

    def add(self, value: Any, key: str) -> None:
        self.seen += 1
        if isinstance(value, dict):
            self.kinds.add("object" if value else "{}")
            self.objects += 1
            for name, member in value.items():
                self.members.setdefault(general(name), _Node()).add(member, name)
        elif isinstance(value, list):
            self.kinds.add("list" if value else "[]")
            for item in value:
                self.items = self.items or _Node()
                self.items.add(item, key)
        else:
            self.kinds.add(_kind(value, key))

    def lines(self, path: str, *, sometimes: bool = False) -> Iterator[str]:
        kinds = self.kinds | ({"absent"} if sometimes else set())
        if kinds not in ({"object"}, {"list"}):
            yield f"{path or '(all)'}: {' | '.join(sorted(kinds))}"
        for name, member in self.members.items():
            missing = member.seen < self.objects
            yield from member.lines(f"{path}.{name}" if path else name, sometimes=missing)
        if self.items is not None:
            yield from self.items.lines(f"{path}[]")


def shape(*values: Any) -> list[str]:
    """Return the lines for values that have one shape together, such as the records of a folder."""
    node = _Node()
    for value in values:
        node.add(value, "")
    return list(node.lines(""))


def shape_of_text(text: str) -> list[str]:
    """Return the lines for a JSON document or JSON lines; one line that says so for other text."""
    try:
        return shape(json.loads(text))
    except ValueError:
        pass
    try:
        return shape([json.loads(line) for line in text.splitlines()])
    except ValueError:
        return ["(text)"]


def general(name: str) -> str:
    """Return a name without what differs from one record or run to another."""
    return re.sub(r"\d+", "{n}", _ID.sub("{id}", name))


def indented(lines: Iterable[str]) -> list[str]:
    """Return the lines, indented by one step."""
    return [f"  {line}" for line in lines]


def _kind(value: Any, key: str) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int | float):
        return str(value) if key.endswith("version") else type(value).__name__
    assert isinstance(value, str)
    if _TIME.fullmatch(value):
        return "time"
    if any(character.isspace() for character in value):
        return "text"
    fixed = _WORD.fullmatch(value) and not _RANDOM_KEYS.fullmatch(key)
    # The names of this machine and user are words too.
    return (
        f'"{value}"' if fixed and value not in (socket.gethostname(), getpass.getuser()) else "str"
    )
