"""Extras: parts of the package that are installed only where they are wanted."""


def installing(extra: str) -> str:
    """The command that brings an extra. It names the checkout: a package of our name on a registry would be somebody else's."""
    return f"pip install '.[{extra}]' in the checkout of Holdfast"
