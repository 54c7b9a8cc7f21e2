"""Finds a grant by its token, for callers that have nothing else, such as those over HTTP."""

from collections.abc import Iterable

from holdfast.kernel.limits import LOCK_TOKENS_KNOWN_MAX
from holdfast.primitives.locks.records import LOCKS, LockHold, lock_in
from holdfast.primitives.locks.table import LockTable


class KnownTokens:
    """The names of grants by token, as far as this process has seen them. No index has the tokens,
    as a grant's row is written before it has one. So an unknown token is searched in all rows.
    """

    def __init__(self) -> None:
        self._names: dict[int, str] = {}

    def note(self, tokens: Iterable[tuple[int, str]]) -> None:
        """Remember tokens and the names that they are for."""
        if len(self._names) > LOCK_TOKENS_KNOWN_MAX:
            # Most of them have ended; a search finds the others again.
            self._names = {}
        self._names.update(tokens)

    def find(self, table: LockTable, token: int) -> LockHold | None:
        """The grant with a token; None when there is none any more."""
        name = self._names.get(token)
        if name is not None and (found := _with(table.lock(name).holds, token)):
            return found
        rows = table.tx.range(LOCKS, damaged=[])
        held = [(hold, row.key) for row in rows for hold in lock_in(row).holds]
        self.note((hold.token, name) for hold, name in held)
        return _with((hold for hold, _ in held), token)


def _with(holds: Iterable[LockHold], token: int) -> LockHold | None:
    return next((hold for hold in holds if hold.token == token), None)
