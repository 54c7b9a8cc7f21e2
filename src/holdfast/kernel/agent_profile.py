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
from holdfast.kernel.text import clipped

PATTERN_CHARS_MAX = 500
_NOT_IN_TMUX = frozenset("'\"\\#,{};$%")
"""Characters with a meaning in tmux's formats or commands."""
_FOR_TMUX = ("dialog", "working", "sign", "placeholder")


def _check_pattern(name: str, pattern: str | None) -> None:
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise ValueError(f"{name} {pattern!r} is no regular expression: {error}") from None


Pattern = Annotated[str, Meta(min_length=1, max_length=PATTERN_CHARS_MAX)]
Key = Literal["C-c", "C-u", "Escape", "Enter", "BSpace"]
Reporter = Literal["claude", "codex", "gemini", "opencode"]
"""How a tool reports what it does: each value is one of the formats that Holdfast reads."""


class ScreenPatterns(Plain, frozen=True, kw_only=True):
    """Regular expressions for the lines of the screen.

    `box` matches the empty input box; its group `cursor`, or the whole match, ends where the cursor
    is then. `draft` matches a box with a text in it, whose first line is its group `text`. `dialog`
    matches any dialog that waits for an answer, and `trust` the one that asks whether to trust the
    folder. `working` matches what is on the screen only while the tool works. `sign` matches what
    stands before the first line of a text in the box, and `placeholder` what the box shows in place
    of a long paste.

    `_FOR_TMUX` are for one line, and tmux uses them too, so they have none of `_NOT_IN_TMUX`.
    """

    box: Pattern | None = None
    draft: Pattern | None = None
    dialog: Pattern | None = None
    trust: Pattern | None = None
    working: Pattern | None = None
    sign: Pattern | None = None
    placeholder: Pattern | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            pattern = getattr(self, name)
            if name in _FOR_TMUX and set(pattern or "") & _NOT_IN_TMUX:
                raise ValueError(
                    f"screen.{name} {pattern!r} has one of {' '.join(sorted(_NOT_IN_TMUX))}: "
                    "write a dot instead"
                )
            if name == "draft" and pattern is not None and "(?P<text>" not in pattern:
                raise ValueError(f"screen.draft {pattern!r} has no group (?P<text>...)")
            _check_pattern(f"screen.{name}", pattern)


class Keys(Plain, frozen=True, kw_only=True):
    """The keys of a tool: `interrupt` stops its work, when it is pressed `interrupt_presses` times,
    and `clear` empties its input box.
    """

    interrupt: Literal["C-c", "Escape"] = "C-c"
    interrupt_presses: Literal[1, 2] = 1
    clear: tuple[Key, ...] = ()


class Taken(Plain, frozen=True, kw_only=True):
    """Which texts the tool does not take as a prompt: those that begin with one of `commands`,
    behind white space, are commands of the tool itself; those that end with one of `unsent` are not
    sent by Enter; and a word that begins with one of `replaced` is replaced by the tool.

    Others need a space, which the tool drops: before a text that begins with one of
    `space_before`, which is a command without it; and behind a text whose last word begins with one
    of `mentions`, since that opens a list of files or the like, which takes the Enter.
    """

    commands: tuple[str, ...] = ()
    unsent: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    space_before: tuple[str, ...] = ()
    mentions: tuple[str, ...] = ()


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
    the screen tells what it does. With `announces` it reports its start, before any prompt, and
    with `reports_stop` also that a person has stopped it. `dialog` says when its own dialog opens
    that asks for a permission: beside the hook that reports the question, or after this hook, when
    it has not decided.
    """

    name: Text
    programs: tuple[Text, ...] = ()
    reports: Reporter | None = None
    announces: bool = True
    reports_stop: bool = False
    dialog: Literal["beside_hook", "after_hook"] = "beside_hook"
    screen: ScreenPatterns = ScreenPatterns()
    keys: Keys = Keys()
    prompts: Taken = Taken()
    launch: ToolStart = ToolStart()


def profile_in(document: object, name: str, path: str) -> Profile:
    """The profile in a decoded TOML document, which does not repeat its name. Raises InvalidValue
    that names the file and the wrong entry.
    """
    check_id(name, "name of a profile")
    try:
        entries = msgspec.convert(document, dict[str, object])
        return msgspec.convert({**entries, "name": name}, Profile)
    except msgspec.ValidationError as error:
        raise InvalidValue(
            f"the profile {path} is wrong: {error}. docs/tools.md lists its entries",
            field="profile",
            profile=name,
        ) from None


def check_taken(profile: Profile, prompt: str) -> None:
    """Raise InvalidValue for a prompt that the tool would not take as one."""
    text = prompt.strip()
    command = next((one for one in profile.prompts.commands if text.startswith(one)), None)
    if command is not None:
        raise InvalidValue(
            f"a prompt that begins with {command} is a command of {profile.name} itself, such as "
            "one of its menus or a shell command that nobody is asked about: begin with a word, or "
            "type it in the agent's own terminal",
            field="prompt",
        )
    ending = next((one for one in profile.prompts.unsent if text.endswith(one)), None)
    if ending is not None:
        raise InvalidValue(
            f"{profile.name} does not send a prompt that ends with {ending}: put something behind "
            "it",
            field="prompt",
        )
    replaced = profile.prompts.replaced
    word = next((one for one in text.split() if replaced and one.startswith(replaced)), None)
    if word is not None:
        raise InvalidValue(
            f"{profile.name} would put something else, such as the content of a file, in the place "
            f"of {clipped(word)}: write it without its first character",
            field="prompt",
        )


def as_typed(profile: Profile, prompt: str) -> str:
    """A prompt with the spaces that make the tool take it as one."""
    last = "" if prompt[-1:].isspace() else prompt.rsplit(maxsplit=1)[-1]
    before = " " if prompt.startswith(profile.prompts.space_before) else ""
    behind = " " if last.startswith(profile.prompts.mentions) else ""
    return f"{before}{prompt}{behind}"
