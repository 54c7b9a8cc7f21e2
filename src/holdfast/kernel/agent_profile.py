"""A profile: what Holdfast knows about a tool that agents are, such as Claude Code.

It says how the tool is started so that it reports what it does, how its screen looks when it takes
a prompt, and which keys it understands. Profiles are TOML files; a user's own one goes before the
built-in one of the same name.
"""

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from holdfast.kernel.agent_adapter import Text
from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.names import check_id

PATTERN_CHARS_MAX = 500

Pattern = Annotated[str, Meta(min_length=1, max_length=PATTERN_CHARS_MAX)]
Key = Literal["C-c", "C-u", "Escape", "Enter", "BSpace"]
Reporter = Literal["claude", "codex", "gemini", "opencode"]
"""How a tool reports what it does: each value is one of the formats that Holdfast reads."""


class ScreenPatterns(Plain, frozen=True, kw_only=True):
    """Regular expressions for the lines of the screen.

    `box` matches the line of the empty input box, where the cursor is then; its group `cursor`, if
    it has one, ends where the cursor is. `draft` matches the line of a box with a text in it.
    `dialog` matches a line of any dialog that waits for an answer, and `trust` one of the dialog
    that asks whether to trust the folder. `working` matches a line that is there only while the
    tool works.
    """

    box: Pattern | None = None
    draft: Pattern | None = None
    dialog: Pattern | None = None
    trust: Pattern | None = None
    working: Pattern | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            pattern = getattr(self, name)
            try:
                re.compile(pattern or "")
            except re.error as error:
                raise ValueError(
                    f"screen.{name} {pattern!r} is no regular expression: {error}"
                ) from None


class Keys(Plain, frozen=True, kw_only=True):
    """The keys of a tool: `interrupt` stops its work, and `clear` empties its input box."""

    interrupt: Literal["C-c", "Escape"] = "C-c"
    clear: tuple[Key, ...] = ()


class ToolStart(Plain, frozen=True, kw_only=True):
    """How the tool is started. `resume` are the arguments that go on with the conversation
    `{session}`; `protocol` is the command that speaks a protocol instead of drawing a screen, with
    the kind of its adapter.
    """

    arguments: tuple[str, ...] = ()
    resume: tuple[str, ...] = ()
    protocol: tuple[str, ...] = ()
    protocol_kind: Literal["acp", "codex_app_server"] = "acp"


class Profile(Plain, frozen=True, kw_only=True):
    """What is known about a tool. `programs` are the names of its command. Without `reports`, only
    the screen tells what it does.
    """

    name: Text
    programs: tuple[Text, ...] = ()
    reports: Reporter | None = None
    screen: ScreenPatterns = ScreenPatterns()
    keys: Keys = Keys()
    launch: ToolStart = ToolStart()


def profile_in(document: object, name: str) -> Profile:
    """The profile in a decoded TOML document, which does not repeat its name. Raises InvalidValue
    that names the wrong entry.
    """
    check_id(name, "name of a profile")
    try:
        entries = msgspec.convert(document, dict[str, object])
        return msgspec.convert({**entries, "name": name}, Profile)
    except msgspec.ValidationError as error:
        raise InvalidValue(
            f"the profile {name} is wrong: {error}. docs/agents.md lists its entries",
            field="profile",
            profile=name,
        ) from None
