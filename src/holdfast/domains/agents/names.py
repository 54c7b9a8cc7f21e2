"""An agent's name: `gpu` and its prefixed form are one, and the id that is given to nobody else follows from it."""

from holdfast.kernel.errors import InvalidName
from holdfast.kernel.names import check_agent_name

PREFIXES = ("HOLDFAST-", "HOUMAO-")
"""What a name may be prefixed with by whoever types it."""


def bare(name: str) -> str:
    """The name without a known prefix."""
    return next((name[len(prefix) :] for prefix in PREFIXES if name.startswith(prefix)), name)


def canonical(name: str, prefix: str) -> str:
    """The one form of a name under the configured prefix.

    Raises InvalidName for what cannot name an agent, and for a prefix with no name behind it, or with another prefix.
    """
    inner = bare(check_agent_name(name))
    if not inner or f"{inner}-".startswith(PREFIXES):
        raise InvalidName(
            f"{name!r} is reserved: put a name of its own behind the prefix, as in {prefix}gpu", what="agent name"
        )
    return check_agent_name(prefix + inner)


def id_of(canonical_name: str) -> str:
    """The id of an agent that was given none: two publishers of one name meet on it."""
    from hashlib import md5

    return md5(canonical_name.encode(), usedforsecurity=False).hexdigest()
