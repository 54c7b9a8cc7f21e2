"""A store that is away while a command has nothing to lose by waiting for it: told once, and waited
for.
"""

import time

from holdfast.kernel.errors import Unavailable
from holdfast.surfaces.cli.output import remark

_PAUSE_S = 0.5


class Outage:
    """The outages of one command's store, one after the other; waited for without a word if it is
    to be quiet.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._told = False

    def wait(self, error: Unavailable, left_s: float | None = None) -> None:
        """Say so, the first time, and pause before the next try, no longer than is left."""
        if not self._told and not self._quiet:
            remark(f"{error.message}. This waits, and goes on when the store is back")
        self._told = True
        # A store that was away tells nobody when it is back.
        time.sleep(_PAUSE_S if left_s is None else max(0.0, min(_PAUSE_S, left_s)))

    def over(self) -> None:
        """It answers."""
        if self._told and not self._quiet:
            remark("the store is back")
        self._told = False
