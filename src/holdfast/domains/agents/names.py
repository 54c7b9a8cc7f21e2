"""An agent's name: `gpu` and its prefixed form are one, and the id that is given to nobody else follows from it."""

from holdfast.kernel.errors import InvalidName
from holdfast.kernel.names import check_agent_name

PREFIXES = ("HOLDFAST-", "HOUMAO-")
"""What a name may be prefixed with by whoever types it."""


def bare(name: str) -> str:
    """The name without a known prefix."""
    if not name.startswith(PREFIXES):
        return name
    return next(name[len(prefix) :] for prefix in PREFIXES if name.startswith(prefix))


def inner(name: str, what: str = "agent name") -> str:
    """What makes a name that may be typed with or without a prefix one name.

    Raises InvalidName for what cannot name an agent, and for a prefix with no name behind it, or with another prefix.
    """
    found = bare(check_agent_name(name, what))
    if f"{found}-".startswith(PREFIXES) or not found:
        raise InvalidName(f"{name!r} is reserved: put a name of its own behind the prefix, as in {PREFIXES[0]}gpu", what=what)
    return found


def canonical(name: str, prefix: str) -> str:
    """The one form of a name under the configured prefix. Raises InvalidName as `inner` does."""
    return check_agent_name(prefix + inner(name))


def id_of(canonical_name: str) -> str:
    """The id of an agent that was given none: two publishers of one name meet on it."""
    from hashlib import md5

    return md5(canonical_name.encode(), usedforsecurity=False).hexdigest()
