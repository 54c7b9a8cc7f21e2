"""Who asks: this process, and a name of its own for each of its requests."""

import os
from itertools import count

from holdfast.kernel import lease as leases
from holdfast.kernel.holder import Holder, Processes, check_holder
from holdfast.kernel.store import Store
from holdfast.primitives.locks.record import Request
from holdfast.primitives.locks.wish import Wish


class Asker:
    """This process as one who asks for locks. `prefix` begins the ids of all its requests, so that a grant shows whom to tell
    that it was taken away; a forked child is another asker, once it has begun."""

    def __init__(self, store: Store, processes: Processes, lease_s: float, label: str) -> None:
        self._store = store
        self._processes = processes
        self._lease_s = lease_s
        self._label = label
        self.begin_process()

    def begin_process(self) -> None:
        """Begin anew, as in a forked child."""
        self.prefix = os.urandom(6).hex()
        self._numbers = count(1)
        self.process: Holder | None = None
        """This process, once it has asked for something."""
        # Last: another thread goes on as soon as it sees this.
        self._pid = os.getpid()

    def resume(self, request_id: str) -> None:
        """Go on as the asker that made a request, before this process executed another program."""
        self.prefix, _, number = request_id.rpartition("-")
        self._numbers = count(int(number, 16) + 1)

    def elsewhere(self) -> bool:
        """Is this a process that was forked since, and has not begun?"""
        return self._pid != os.getpid()

    def this_process(self) -> Holder:
        """The process that asks."""
        if self.process is None:
            self.process = check_holder(self._processes.current(self._label))
        return self.process

    def new_id(self) -> str:
        """The name of the next request."""
        return f"{self.prefix}-{next(self._numbers):x}"

    def draft(self, request_id: str, wish: Wish, process: Holder | None) -> Request:
        """A request that has no place yet."""
        now, this = self._store.now(), self.this_process()
        return Request(
            id=request_id,
            name=wish.names[0],
            names=wish.names,
            mode=wish.mode,
            look=wish.look,
            by=wish.by,
            priority=wish.priority,
            rank=0,
            arrival=0,
            arrived_at=now,
            process=this,
            grantee=None if process == this else process,
            unattended=process is None,
            ttl_s=wish.ttl_s,
            lease=leases.grant(now, self._lease_s),
            address="",
        )
