"""Locks for the page: who holds, who waits, and why."""

from collections.abc import Iterator

from holdfast.kernel.codec import Instant, Plain
from holdfast.kernel.limits import LIST_MAX, PAGE_LINES
from holdfast.operations.page.explanation import Action, Fact, Tone, Why, known, matching
from holdfast.primitives.locks import Locks
from holdfast.primitives.locks.inspect import (
    Alive,
    Explanation,
    HoldStatus,
    LockLine,
    LockStatus,
    WaitStatus,
    describe_process,
)

_SHOWN = 20


class HeldLine(Plain, frozen=True, kw_only=True):
    """One resource in a list."""

    name: str
    tone: Tone
    state: str
    by: str
    holders: int
    mode: str
    process: str
    since: Instant | None
    ends_at: Instant | None
    """Only where it ends by itself."""
    waiting: int
    waited_since: Instant | None


class LockPage(Plain, frozen=True, kw_only=True):
    """A stretch of the list. `next` is the name behind which the following one begins; None at its
    end.
    """

    total: int
    lines: tuple[HeldLine, ...]
    next: str | None


def lock_page(
    locks: Locks, *, after: str = "", limit: int = PAGE_LINES, words: str = ""
) -> LockPage:
    """A stretch of what is held or waited for, by name; with `words`, of those in whose line they
    occur, among LIST_MAX.
    """

    def searched(one: LockLine) -> tuple[HeldLine, str]:
        line = line_of(one)
        return line, f"{line.name} {line.by} {line.state} {line.process}"

    found = matching(_from(locks, after), searched, words, limit)
    behind = found[-1][0].name if len(found) == limit else None
    lines = tuple(line for _, line in found)
    return LockPage(total=locks.counts().resources, lines=lines, next=behind)


def _from(locks: Locks, after: str) -> Iterator[LockLine]:
    """What is held or waited for by name, read in pages, LIST_MAX at most."""
    for _ in range(LIST_MAX // PAGE_LINES):
        page = locks.page(after=after, limit=PAGE_LINES)
        yield from page
        if len(page) < PAGE_LINES:
            return
        after = page[-1].name


def line_of(one: LockLine) -> HeldLine:
    """A resource in a list."""
    first = one.holds[0] if one.holds else None
    tone, state = _state(one.holds, one.waiting)
    return HeldLine(
        name=one.name,
        tone=tone,
        state=state,
        by=", ".join(hold.by for hold in one.holds[:3]) + (" …" if len(one.holds) > 3 else ""),
        holders=len(one.holds),
        mode="" if first is None else first.mode.value,
        process="" if first is None else describe_process(first.process, first.alive),
        since=None if first is None else first.since,
        ends_at=first.expires_at if first is not None and first.has_ttl else None,
        waiting=one.waiting,
        waited_since=one.waited_since,
    )


def why_lock(locks: Locks, name: str) -> Why:
    """Why a resource is not free: who has it, through which chain, who waits, and what can be
    done.
    """
    found = locks.explain(name)
    tone, state = _state(found.status.holds, len(found.status.queue))
    held = any(not hold.reclaimable for hold in found.status.holds)
    return Why(
        kind="lock",
        name=name,
        title=name,
        state=state,
        tone=tone,
        words=(*_chain(found), *_line_words(found.status)),
        facts=tuple(
            fact for hold in found.status.holds[:_SHOWN] for fact in _facts(hold, found.status)
        ),
        advice=found.advice,
        actions=(_kick(found.status),) if held else (),
    )


def _kick(status: LockStatus) -> Action:
    """Taking it away, with all that goes with it and what it does not do."""
    more = sorted({other for hold in status.holds for other in hold.names} - {status.name})
    holders = {hold.by for hold in status.holds}
    names = ", ".join(hold.by for hold in status.holds[:_SHOWN])
    together = f" With it goes what was taken together with it: {', '.join(more)}." if more else ""
    return Action(
        verb="kick",
        subject=status.name,
        label="Kick",
        effect=(
            f"{status.name} is taken away from {names} at once and goes to the next "
            f"waiter.{together} The old token is refused from then on, but the process is not "
            "stopped: end it first if it must not go on. It is journalled with your reason."
        ),
        # Only from the job that the page showed: the next waiter may hold it when the button is
        # pressed.
        by=holders.pop() if len(holders) == 1 else None,
    )


def _state(holds: tuple[HoldStatus, ...], waiting: int) -> tuple[Tone, str]:
    if not holds:
        return ("wait", "free, but waited for") if waiting else ("idle", "free")
    if all(hold.reclaimable for hold in holds):
        ended = "its holder is dead" if holds[0].alive is Alive.DEAD else "its lease has expired"
        # The next request gets it: that is no trouble unless somebody waits already.
        return ("bad" if waiting else "idle"), ended
    shared = f"shared by {len(holds)}" if len(holds) > 1 else "held"
    return ("wait", f"{shared}, {waiting} waiting") if waiting else ("busy", shared)


def _chain(found: Explanation) -> list[str]:
    status = found.status
    lines = [f"{status.name} ← {_holder(hold, found)}" for hold in status.holds[:_SHOWN]] or [
        f"Nobody holds {status.name}."
    ]
    for blockage in found.blockages[:_SHOWN]:
        for hold in blockage.holds:
            lines.append(f"{blockage.by} waits for {blockage.waits_for} ← {_holder(hold, found)}")
    return lines


def _holder(hold: HoldStatus, found: Explanation) -> str:
    return " ← ".join(
        (hold.by, *found.behind.get(hold.by, ()), describe_process(hold.process, hold.alive))
    )


def _line_words(status: LockStatus) -> list[str]:
    lines = [
        f"{wait.position}. waiter: {wait.by}, {_request(wait)}" for wait in status.queue[:_SHOWN]
    ]
    more = len(status.queue) - _SHOWN
    return [*lines, f"and {more} more waiting"] if more > 0 else lines


def _request(wait: WaitStatus) -> str:
    mode = "only waits" if wait.looks else wait.mode.value
    return f"{mode}, {describe_process(wait.process, wait.alive)}"


def _facts(hold: HoldStatus, status: LockStatus) -> tuple[Fact, ...]:
    others = [name for name in hold.names if name != status.name]
    return known(
        Fact(name=f"{hold.by} has it since", at=hold.since),
        Fact(name="ends by itself", at=hold.expires_at if hold.has_ttl else None),
        Fact(name="process", text=describe_process(hold.process, hold.alive)),
        Fact(name="mode", text=hold.mode.value),
        Fact(name="taken together with", text=", ".join(others)),
        Fact(name="token", text=str(hold.token)),
    )
