"""Rules of the kernel, each with a way to break it."""

from proof.mutation.mutant import Mutant

_LEASE = "kernel/lease.py"
_HOLDER = "kernel/holder.py"
_ENDED = "embedded and not processes.boot_lives(holder.boot_id)"
_TOKEN = "kernel/token.py"
_CLOCK = "kernel/clock.py"
_NAMES = "kernel/names.py"
_CODEC = "kernel/codec.py"
_ORDERING = "kernel/order.py"
_SPACE = "kernel/space.py"

TESTS: dict[str, tuple[str, ...]] = {
    _LEASE: ("tests/unit/test_lease.py",),
    _HOLDER: ("tests/unit/test_holder.py",),
    _TOKEN: ("tests/unit/test_token.py",),
    _CLOCK: ("tests/unit/test_clock.py",),
    _NAMES: ("tests/unit/test_names.py",),
    _CODEC: ("tests/unit/test_codec.py",),
    _ORDERING: ("tests/unit/test_ordering.py",),
    _SPACE: ("tests/unit/test_space.py",),
}

MUTANTS = [
    # Leases.
    Mutant(
        "a lease is fresh at its last instant",
        _LEASE,
        "self.expires_at >= now",
        "self.expires_at > now",
    ),
    Mutant("a renewal never ends a lease earlier", _LEASE, "max(lease.expires_at, end)", "end"),
    Mutant(
        "a lease that gets a TTL ends by it",
        _LEASE,
        "if explicit and not lease.explicit:",
        "if False:",
    ),
    Mutant(
        "a dead holder's claim may be taken", _LEASE, "if liveness is Liveness.DEAD:", "if False:"
    ),
    Mutant(
        "a live holder is never reaped for being slow",
        _LEASE,
        "(liveness is Liveness.UNKNOWN or lease.explicit)",
        "True",
    ),
    Mutant(
        "a requested TTL ends the claim of a live holder",
        _LEASE,
        "Liveness.UNKNOWN or lease.explicit)",
        "Liveness.UNKNOWN)",
    ),
    Mutant(
        "a holder that cannot be seen keeps its claim until the lease ends",
        _LEASE,
        "return not lease.fresh(now) and (",
        "return (",
    ),
    Mutant("a TTL is greater than zero", _LEASE, "if not 0 < ttl_s < ", "if not 0 <= ttl_s < "),
    Mutant(
        "a lease starts at an instant with a time zone",
        _LEASE,
        "if now.tzinfo is None:",
        "if False:",
    ),
    Mutant(
        "a renewal is due only after a fifth of the lease",
        _LEASE,
        "_DUE_SHARE = 0.8",
        "_DUE_SHARE = 2.0",
    ),
    # Holders.
    Mutant(
        "a process on another machine is unknown",
        _HOLDER,
        "if holder.host_id != here.host_id:",
        "if False:",
    ),
    Mutant(
        "another boot proves death on an embedded store",
        _HOLDER,
        "DEAD if ended else Liveness.UNKNOWN",
        "UNKNOWN",
    ),
    Mutant(
        "another boot proves nothing on a database",
        _HOLDER,
        "DEAD if ended else Liveness.UNKNOWN",
        "DEAD",
    ),
    Mutant("a foreign boot id that is still in use proves nothing", _HOLDER, _ENDED, "embedded"),
    Mutant(
        "another pid namespace is unknown", _HOLDER, "if holder.pid_ns == here.pid_ns:", "if True:"
    ),
    Mutant("a hidden process is unknown", _HOLDER, "elif seen.start_ticks is not None:", "else:"),
    Mutant("a zombie is dead", _HOLDER, "seen.zombie or ", ""),
    Mutant(
        "a reused pid is another process",
        _HOLDER,
        " or seen.start_ticks not in (None, holder.start_ticks):",
        ":",
    ),
    Mutant(
        "an embedded store judges processes of earlier boots",
        _HOLDER,
        "return (here.host_id,) if embedded",
        "return tuple(here) if embedded",
    ),
    Mutant(
        "on a database only processes of this machine are judged",
        _HOLDER,
        " if embedded else tuple(here)",
        "",
    ),
    # Process trees.
    Mutant(
        "a live tree keeps a dead command's claim",
        _HOLDER,
        "if alive is Liveness.ALIVE or not holder.tree:",
        "if True:",
    ),
    Mutant(
        "a leader is judged without its tree",
        _HOLDER,
        "replace(self, tree=UNSET) if self.tree else self",
        "self",
    ),
    # Tokens.
    Mutant(
        "a new era is greater than the last one",
        _TOKEN,
        "max(known + 1, seconds)",
        "max(known, seconds)",
    ),
    Mutant(
        "a new era is greater than any that a lost copy may have used",
        _TOKEN,
        "max(known + 1, seconds)",
        "known + 1",
    ),
    Mutant(
        "an era grows although the clock was set back",
        _TOKEN,
        "return known + STRIDE",
        "return seconds",
    ),
    # Clock and names.
    Mutant(
        "an instant without a time zone is refused",
        _CLOCK,
        "if at.utcoffset() is None:",
        "if False:",
    ),
    Mutant("an instant is written in UTC", _CLOCK, "return at.astimezone(UTC)", "return at"),
    Mutant(
        "an id begins with a letter or digit",
        _NAMES,
        "_checked(value, what, _ALPHANUMERIC, _ID,",
        "_checked(value, what, _ID, _ID,",
    ),
    Mutant(
        "the length of an id is bounded",
        _NAMES,
        "0 < len(value) <= ID_CHARS_MAX",
        "0 < len(value)",
    ),
    Mutant(
        "an agent's name has no dot",
        _NAMES,
        "_ALPHANUMERIC, _SAFE_IN_PATH, rule",
        "_ALPHANUMERIC, _ID, rule",
    ),
    Mutant(
        "a label has no control characters",
        _NAMES,
        "value.isprintable() if value.isascii()",
        "True if value.isascii()",
    ),
    Mutant(
        "two labels never share a path",
        _NAMES,
        '_ALPHANUMERIC | {"_", "-"}',
        '_ALPHANUMERIC | {"_", "-", "%"}',
    ),
    # Records.
    Mutant(
        "a secret is not shown",
        _CODEC,
        "... if value and name in self.secret_fields else value",
        "value",
    ),
    Mutant("unknown fields are refused", _CODEC, ", forbid_unknown_fields=True", ""),
    Mutant(
        "a record that has an instant without a time zone is refused",
        _CODEC,
        "if type(at) is datetime and at.tzinfo is None:",
        "if False:",
    ),
    Mutant(
        "a shorter text sorts before a longer one",
        _ORDERING,
        r'if b"\0" in text else text) + b"\0\0"',
        r'if b"\0" in text else text) + b"\xff\xff"',
    ),
    Mutant(
        "a NUL in a text is escaped",
        _ORDERING,
        r'text.replace(b"\0", b"\0\xff") if b"\0" in text else text',
        "text",
    ),
    Mutant(
        "negative numbers sort before others",
        _ORDERING,
        "(part + _OFFSET).to_bytes(8",
        "abs(part).to_bytes(8",
    ),
    Mutant(
        "a span ends with its prefix",
        _ORDERING,
        "beyond(prefix) if stop is None",
        "None if stop is None",
    ),
    Mutant(
        "a space stores only its own model", _SPACE, "if type(record) is not self.model or ", "if "
    ),
    Mutant(
        "a record that could not be read again is not written",
        _SPACE,
        "            self._decoder.decode(data)\n        except (msgspec.MsgspecError",
        "        except (msgspec.MsgspecError",
    ),
    Mutant(
        "the size of a record is bounded", _SPACE, "if len(data) > RECORD_BYTES_MAX:", "if False:"
    ),
    Mutant("a newer record is refused", _SPACE, "if version > self.schema_version:", "if False:"),
    Mutant(
        "an older record is upgraded step by step",
        _SPACE,
        "for step in range(version, self.schema_version):",
        "for step in range(version, version + 1):",
    ),
    Mutant(
        "a space has an upgrade from every older version",
        _SPACE,
        "if missing := set(range(1, schema_version)) - set(self.upgrades):",
        "if missing := set():",
    ),
]
