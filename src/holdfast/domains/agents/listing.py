"""Agents in the order of their names, a page at a time."""

from holdfast.domains.agents.names import bare
from holdfast.domains.agents.record import AGENTS, Agent
from holdfast.kernel.store import Damage, ReadTx


def page(tx: ReadTx, *, after: tuple[str, str] | None, limit: int, damaged: Damage | None) -> list[Agent]:
    """Up to `limit` agents behind a name and id, by name, then id."""
    if after is None:
        return [row.record for row in tx.find(AGENTS, "name", limit=limit, damaged=damaged)]
    place = (bare(after[0]), after[1])
    # Those of the same name come again, as a page can begin only with a name.
    again = tx.count(AGENTS, "name", place[:1])
    found = tx.find(AGENTS, "name", start=place[:1], limit=limit + again, damaged=damaged)
    return [row.record for row in found if (bare(row.record.agent_name), row.key) > place][:limit]
