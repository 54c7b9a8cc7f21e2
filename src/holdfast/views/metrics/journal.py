"""How far behind the journal's followers are, and how far back it goes."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from holdfast.kernel.store import Entry
from holdfast.primitives.journal import Lag
from holdfast.views.metrics.text import gauge, gauges

if TYPE_CHECKING:
    from prometheus_client import Metric


def of_journal(lags: Mapping[str, Lag], oldest: Entry | None, keep_s: float, now: datetime) -> "Iterator[Metric]":
    """The samples of the journal."""
    yield gauges(
        "holdfast_journal_lag_entries",
        "Entries that a follower has yet to tell of, as far as was looked.",
        ["follower"],
        (([name], lag.entries) for name, lag in lags.items()),
    )
    yield gauges(
        "holdfast_journal_lag_seconds",
        "Age of the first entry that a follower has yet to tell of; 0 when there is none.",
        ["follower"],
        (([name], 0.0 if lag.since is None else _age_s(lag.since, now)) for name, lag in lags.items()),
    )
    age_s = 0.0 if oldest is None else _age_s(oldest.at, now)
    yield gauge("holdfast_journal_oldest_entry_age_seconds", "Age of the oldest entry that is kept.", age_s)
    yield gauge("holdfast_journal_keep_seconds", "Age at which entries may be dropped.", keep_s)


def _age_s(at: datetime, now: datetime) -> float:
    # Clocks step back.
    return max((now - at).total_seconds(), 0.0)
