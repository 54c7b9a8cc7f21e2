"""What somebody asks of the lock manager, once it is known to be possible. Nothing here touches the store."""

from collections.abc import Iterable
from typing import NamedTuple

from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.holder import THIS_PROCESS, Holder, ThisProcess, check_holder
from holdfast.kernel.limits import LOCK_NAMES_MAX, LOCK_PRIORITY_MAX, LOCK_SET_BYTES_MAX, LOCK_TTL_MAX_S
from holdfast.kernel.names import check_label, check_new_label
from holdfast.primitives.locks.record import Mode


class Wish(NamedTuple):
    """A set of names, for a job, in a mode, on these terms."""

    names: tuple[str, ...]
    by: str
    mode: Mode
    timeout_s: float | None
    priority: int = 0
    ttl_s: float | None = None
    process: Holder | ThisProcess | None = THIS_PROCESS
    look: bool = False
    """It waits until the names are free and takes nothing."""


def wished(
    names: str | Iterable[str],
    by: str,
    mode: Mode | str,
    timeout_s: float | None,
    priority: int = 0,
    ttl_s: float | None = None,
    process: Holder | ThisProcess | None = THIS_PROCESS,
    *,
    look: bool = False,
) -> Wish:
    """Check what a caller gave. Raises InvalidName and InvalidValue, naming what is wrong."""
    # To look takes nothing: what has an odd name from before can still be waited for.
    wanted = check_names(names, new=not look)
    # Mostly it is this one, and to look it up costs as much as all other checks.
    mode = mode if mode is Mode.EXCLUSIVE else _mode(mode)
    check_new_label(by, "job")
    if timeout_s != timeout_s:
        raise InvalidValue("timeout_s is not a number: give the seconds to wait, or None for no limit", field="timeout_s")
    check_ttl(ttl_s)
    if process is None and ttl_s is None:
        raise InvalidValue(
            "a grant that no process holds needs a ttl_s, or nothing would ever end it: give one, or the process that holds it",
            field="ttl_s",
        )
    if isinstance(process, Holder):
        check_holder(process)
    if not -LOCK_PRIORITY_MAX <= priority <= LOCK_PRIORITY_MAX:
        raise InvalidValue(
            f"a priority of {priority} is not possible: use -{LOCK_PRIORITY_MAX} to {LOCK_PRIORITY_MAX}", field="priority"
        )
    return Wish(wanted, by, mode, timeout_s, priority, ttl_s, process, look)


def check_names(names: str | Iterable[str], *, new: bool = False) -> tuple[str, ...]:
    """The names of a request, each once, in their order. `new` ones are to be taken. Raises InvalidName and InvalidValue."""
    wanted = (names,) if isinstance(names, str) else tuple(dict.fromkeys(names))
    check = check_new_label if new else check_label
    for name in wanted:
        check(name, "resource")
    if len(wanted) > 1 and sum(len(name.encode()) for name in wanted) > LOCK_SET_BYTES_MAX:
        raise InvalidValue(
            f"the names of one request may have {LOCK_SET_BYTES_MAX} bytes together: ask for a name that stands for many",
            field="names",
            bytes_max=LOCK_SET_BYTES_MAX,
        )
    if len(wanted) > LOCK_NAMES_MAX:
        raise InvalidValue(
            f"one request may have {LOCK_NAMES_MAX} names, not {len(wanted)}: ask for a name that stands for many",
            field="names",
            names_max=LOCK_NAMES_MAX,
        )
    return wanted


def check_ttl(ttl_s: float | None) -> None:
    """Refuse a time to live that is not possible."""
    if ttl_s is not None and not 0 < ttl_s <= LOCK_TTL_MAX_S:
        raise InvalidValue(f"ttl_s is {ttl_s}: give more than 0 seconds, and {LOCK_TTL_MAX_S:.0f} at most", field="ttl_s")


def _mode(mode: Mode | str) -> Mode:
    try:
        return Mode(mode)
    except ValueError:
        raise InvalidValue(f"{ascii(mode)[:40]} is no mode of a lock: use exclusive or shared", field="mode") from None
