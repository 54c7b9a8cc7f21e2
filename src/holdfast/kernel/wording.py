"""Numbers in sentences."""


def counted(number: int, one: str, more: str = "") -> str:
    """A number with what it counts: "1 lock", "2 locks", or "1 lock is" and "2 locks are" where a verb comes along."""
    return f"{number} {one if number == 1 else more or one + 's'}"
