"""Text that people read: invisible characters, numbers with nouns, and a hint for extras.

Invisible characters, and those that a terminal obeys instead of showing:

| characters | category | shown to people | new name | prompt typed into a terminal |
| --- | --- | --- | --- | --- |
| tab, newline | Cc | as they are | refused | kept |
| other control characters | Cc | written out | refused | refused: a terminal obeys them |
| halves of surrogate pairs | Cs | written out | refused | refused: no encoding carries them |
| ends of a line or paragraph | Zl, Zp | written out | refused | kept |
| zero-width, soft hyphen, direction, annotation | Cf | written out | refused | kept |
| variation selectors, invisible joiners | Mn | written out | refused | kept; two in a row refused |
| fillers of Hangul | Lo | written out | refused | kept |
| tags, rest of their plane | Cf, Mn, Cn | written out | refused | refused outside a flag |
| private use, and what is no character | Co, Cn | written out | refused | kept |

An emoji is shown and kept: a selector behind a picture, a joiner between two, the tags of a flag.

Tags and rows of selectors can hide text that a model reads and people do not see, and no writing
system needs them. The other invisible characters have honest uses, as in Persian, so a prompt may
have them. JSON has every character unchanged. `surfaces/http/page/assets.py` uses the same pattern.
"""

import re

_CONTROL = "\x00-\x08\x0b-\x1f\x7f-\x9f"
_HALVES = "\ud800-\udfff"
_UNSEEN = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200c\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
)
"""All characters that a font draws as nothing, except tags and those that emoji need."""
_UNKNOWN = "\ue000-\uf8ff\ufdd0-\ufdef\ufffe\uffff\U000e0000-\U0010ffff"
"""Private use, non-characters, and the plane of the tags."""

_PICTURE = (
    "\u00a9\u00ae\u203c\u2049\u2100-\u27bf\u2900-\u297f\u2b00-\u2bff\u3030\u303d\u3297\u3299"
    "\U0001f000-\U0001faff"
)
"""The characters of emoji."""
_FLAG = "\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{3,6}\U000e007f"
"""The flag of a part of a country: a black flag, its code in tags, and their end."""

# A text, as few short commands print anything that needs it compiled.
UNFIT = (
    f"(?P<flag>{_FLAG})|[{_CONTROL}{_HALVES}{_UNSEEN}{_UNKNOWN}]"
    f"|(?<![{_PICTURE}])(?:(?<![#*0-9])[\ufe0e\ufe0f]|[\ufe0e\ufe0f](?!\u20e3))"
    f"|(?<![{_PICTURE}\ufe0f])\u200d|\u200d(?![{_PICTURE}])"
)
"""What is written out for people, and flags, which stay. A browser reads the same pattern."""

_HIDDEN = f"(?P<flag>{_FLAG})|[\U000e0000-\U000e007f]|[\ufe00-\ufe0f\U000e0100-\U000e01ef]{{2,}}"


def shown(text: str) -> str:
    """The text with its invisible characters, and those that a terminal obeys, written out:
    `\\u200b`.
    """
    return text if text.isascii() and text.isprintable() else re.sub(UNFIT, _written, text)


def invisible_in(name: str) -> tuple[int, str] | None:
    """The first invisible character of a name and its position, or None."""
    if name.isascii():
        return None
    # Those of emoji count too: with and without them a name may look the same.
    found = re.search(f"[{_UNSEEN}{_UNKNOWN}\u200d\ufe0e\ufe0f]", name)
    return None if found is None else (found.start(), found[0])


def hidden_in(text: str) -> tuple[int, str] | None:
    """The first character of hidden text and its position, or None."""
    if text.isascii():
        return None
    found = next((one for one in re.finditer(_HIDDEN, text) if one["flag"] is None), None)
    return None if found is None else (found.start(), found[0][0])


def _written(found: "re.Match[str]") -> str:
    return found["flag"] or found[0].encode("unicode_escape").decode()


def counted(number: int, one: str, more: str = "") -> str:
    """A number with its noun, and a verb if that is given with it: "1 lock", "2 locks", "2 locks
    are".
    """
    return f"{number} {one if number == 1 else more or one + 's'}"


def clipped(text: str, width: int = 60) -> str:
    """One line of a text, cut to a width."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def installing(extra: str) -> str:
    """The command that installs an extra."""
    # Not from a registry: a package of this name there would be somebody else's.
    return f"pip install '.[{extra}]' in the checkout of Holdfast"
