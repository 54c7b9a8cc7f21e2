"""Numbers in sentences; and how an extra is installed."""


def counted(number: int, one: str, more: str = "") -> str:
    """A number with what it counts: "1 lock", "2 locks", or "1 lock is" and "2 locks are" where a verb comes along."""
    return f"{number} {one if number == 1 else more or one + 's'}"


def installing(extra: str) -> str:
    """The command that brings an extra. It names the checkout: a package of our name on a registry would be somebody else's."""
    return f"pip install '.[{extra}]' in the checkout of Holdfast"
