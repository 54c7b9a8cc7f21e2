"""What tests of counted holds share."""

from holdfast.kernel.store import Entry
from holdfast.primitives.holds import Holds

BRISK_S = 0.03
"""A lease so short that the background renews it all the time."""


def names(holds: Holds, subject: str = "s") -> list[str]:
    """Who holds a subject, of those that are not gone; the count must be their number."""
    found = [hold.by for hold in holds.holders(subject)]
    assert holds.count(subject) == len(found)
    assert holds.subjects().get(subject, 0) == len(found)
    return found


def replay(entries: list[Entry]) -> dict[str, set[str]]:
    """Follow the journal with plain sets: each count in it must be the size of the set. Returns the
    sets at the end.
    """
    sets: dict[str, set[str]] = {}
    for at, entry in enumerate(entries):
        held, by = sets.setdefault(entry.subject, set()), entry.data["by"]
        if entry.kind == "hold.taken":
            held.add(by)
        else:
            assert by in held, f"entry {at} tells of a hold that ended before: {entry}"
            held.remove(by)
        # Those that are swept together are gone at once.
        if entry.kind != "hold.swept":
            assert entry.data["count"] == len(held), f"entry {at} tells another count: {entry}"
    return {subject: held for subject, held in sets.items() if held}
