"""What may be a name. A checked name is safe as a key in every store and, encoded, in a path."""

import re

from holdfast.kernel.errors import InvalidName, InvalidValue
from holdfast.kernel.limits import ID_CHARS_MAX, LABEL_CHARS_MAX
from holdfast.kernel.text import invisible_in

# Sets and not patterns: every start of the program would compile those, which takes 0.6 ms.
_ALPHANUMERIC = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_SAFE_IN_PATH = _ALPHANUMERIC | {"_", "-"}
_ID = _SAFE_IN_PATH | {"."}
# No control characters (line ends included) and no halves of surrogate pairs. Compiled for a label
# that is not ASCII.
_LABEL = r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029]*\Z"


def check_id(value: str, what: str = "id") -> str:
    """`value`, if it may be an id; else raises InvalidName. `what` is for the message."""
    return _checked(
        value, what, _ALPHANUMERIC, _ID, "A-Z a-z 0-9 . _ - with a letter or digit first"
    )


def check_agent_name(value: str, what: str = "agent name") -> str:
    """`value`, if it may name an agent: an id without dots. Raises InvalidName."""
    rule = "A-Z a-z 0-9 _ - with a letter or digit first"
    return _checked(value, what, _ALPHANUMERIC, _SAFE_IN_PATH, rule)


def check_job_id(value: str, what: str = "job id") -> str:
    """`value`, if it may be a job's id: an id that may also begin with `_` or `-`."""
    return _checked(value, what, _SAFE_IN_PATH, _ID, "A-Z a-z 0-9 . _ - with no dot first")


def check_label(value: str, what: str = "label") -> str:
    """`value`, if it may be a label, such as `/dev/ttyUSB0`. Raises InvalidName."""
    if (
        isinstance(value, str)
        and 0 < len(value) <= LABEL_CHARS_MAX
        and (value.isprintable() if value.isascii() else re.match(_LABEL, value))
    ):
        return value
    raise _refusal(value, what, f"1 to {LABEL_CHARS_MAX} characters without control characters")


def check_new_label(value: str, what: str = "label") -> str:
    """`value`, if something new may have this label: without invisible characters (`kernel.text`),
    by which two names look the same. What has such a label already is still found.
    """
    # Most labels are ASCII, and every claim comes through here.
    if (
        isinstance(value, str)
        and value.isascii()
        and value.isprintable()
        and 0 < len(value) <= LABEL_CHARS_MAX
    ):
        return value
    check_label(value, what)
    if (found := invisible_in(value)) is not None:
        at, character = found
        raise InvalidName(
            f"{_shortened(value)} cannot be {_article(what)}: its character {at + 1}, "
            f"U+{ord(character):04X}, is invisible. Leave it out",
            what=what,
            at=at,
        )
    return value


def check_text(value: str, what: str) -> str:
    """`value`, if every Unicode encoding can carry it. Raises InvalidValue."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        # What was not UTF-8 on a command line comes as halves of surrogate pairs.
        raise InvalidValue(
            f"the {what} is not UTF-8 at character {error.start + 1}: write it in UTF-8, or put it "
            "into a file and give its path",
            field=what,
        ) from None
    return value


def path_component(label: str) -> str:
    """A label as a unique component of a path: all but A-Z a-z 0-9 _ - becomes %XX."""
    return "".join(
        c if c in _SAFE_IN_PATH else "".join(f"%{b:02X}" for b in c.encode()) for c in label
    )


def _checked(
    value: str, what: str, first: frozenset[str], rest: frozenset[str], characters: str
) -> str:
    if (
        isinstance(value, str)
        and 0 < len(value) <= ID_CHARS_MAX
        and value[0] in first
        and rest.issuperset(value)
    ):
        return value
    raise _refusal(value, what, f"1 to {ID_CHARS_MAX} of {characters}")


def _refusal(value: object, what: str, rule: str) -> InvalidName:
    return InvalidName(f"{_shortened(value)} cannot be {_article(what)}: use {rule}", what=what)


def _shortened(value: object) -> str:
    shown = ascii(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _article(what: str) -> str:
    return f"an {what}" if what[:1].lower() in "aeiou" else f"a {what}"
