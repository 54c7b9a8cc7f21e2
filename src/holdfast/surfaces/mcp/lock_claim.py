"""A request for locks, from the first call to its release."""

from collections.abc import Callable, Iterator, Sequence

from holdfast.kernel.errors import HoldfastError, LeaseLost
from holdfast.kernel.limits import MCP_UNTOLD_S
from holdfast.primitives.locks import Grant, Mode
from holdfast.primitives.locks.grant import lost
from holdfast.primitives.locks.policy import Obstruction
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.mcp.answers import Holding, Notice
from holdfast.surfaces.mcp.cancellation import Call
from holdfast.surfaces.mcp.turn import Turn


class LockClaim:
    """A set of names that is waited for, or held."""

    def __init__(
        self,
        hf: Holdfast,
        handle: str,
        names: Sequence[str],
        by: str,
        mode: Mode,
        ttl_s: float | None,
    ) -> None:
        self._hf = hf
        self.handle = handle
        self.names = tuple(names)
        self.by = by
        self.mode = mode
        self._ttl_s = ttl_s
        self._in_line = False
        self._turn: Turn[Grant] = Turn(self._seek, abandon=hf.locks.abandon, over=self._over)

    def begin(self, ended: Callable[[], object]) -> None:
        """Get in line."""
        self._turn.begin(ended)

    def wait(self, limit_s: float, call: Call) -> None:
        """Wait for the turn."""
        self._turn.wait(limit_s, call)

    def grant(self) -> Grant | None:
        """What it holds; None while it waits. Raises what it was refused with, and LeaseLost when
        it is gone.
        """
        found = self._turn.found()
        if found is not None and found.gone == "released":
            raise self._over()
        if found is not None and found.gone == "lost":
            raise lost(found)
        return found

    def tell(self) -> bool:
        """The agent is about to know that it holds it; True for the first time. Raises LeaseLost
        when it was given back in the same moment.
        """
        return self._turn.tell()

    def obstruction(self) -> Obstruction | None:
        """Who holds it and who is before it, as of now; None while it is not in line yet."""
        return (
            self._hf.locks.obstruction(self.names, by=self.by, mode=self.mode)
            if self._in_line
            else None
        )

    def holding(self) -> Holding:
        """What it is, and how it stands."""
        try:
            state = "waiting" if self.grant() is None else "held"
        except HoldfastError as error:
            state = error.code
        return Holding(
            handle=self.handle,
            what=f"{self.mode.value} lock on {', '.join(self.names)}",
            state=state,
        )

    def notices(self) -> Iterator[Notice]:
        """Whether its turn has come, it was refused, or it was taken away."""
        try:
            grant = self.grant()
            if grant is None:
                return
            self._hf.locks.check(grant)
            first = self.tell()
        except LeaseLost as error:
            yield Notice(kind="lease_lost", handle=self.handle, message=error.message)
            return
        except HoldfastError as error:
            if error is not self._turn.refusal:
                raise
            yield Notice(kind="lock_refused", handle=self.handle, message=error.message)
            return
        if first:
            words = (
                f"{', '.join(self.names)} is yours now (token {grant.token}): do what you wanted "
                "it for, then release it"
            )
            yield Notice(kind="lock_granted", handle=self.handle, message=words)

    def attend(self, now_s: float) -> float | None:
        """A grant that nobody came for is given back: others wait for it."""
        due_s = self._turn.untold_until_s()
        if due_s is None or now_s < due_s:
            return due_s
        if self._turn.kept is None or not self._turn.withhold():
            return None
        try:
            self._hf.locks.release(self._turn.kept)
        except HoldfastError:
            return now_s + 1.0
        return None

    def let_go(self, within_s: float) -> bool:
        """Withdraw it, or release what it holds. Raises StoreUnavailable when that cannot be said
        to have been done.
        """
        waited = self._turn.give_up(within_s)
        return waited if self._turn.kept is None else self._hf.locks.release(self._turn.kept)

    def _seek(self, stop_fd: int) -> Grant | None:
        return self._hf.locks.try_acquire(
            self.names,
            by=self.by,
            mode=self.mode,
            timeout_s=None,
            ttl_s=self._ttl_s,
            on_wait=self._see,
            stop_fd=stop_fd,
        )

    def _over(self) -> LeaseLost:
        why = (
            f"given back after {MCP_UNTOLD_S:g} s, as nobody came for it"
            if self._turn.withheld
            else "given up"
        )
        return LeaseLost(
            f"{', '.join(self.names)} was {why}: `acquire` again if you still need it",
            names=list(self.names),
        )

    def _see(self, _: object) -> None:
        self._in_line = True
