"""Valid IP addresses, MAC addresses, code points and job types, and the one form in which
addresses are compared.
"""

import re
from collections.abc import Iterable, Mapping
from ipaddress import IPv6Address, ip_interface
from itertools import islice
from typing import Any

from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.limits import BATCH_MAX, DSCP_MAX
from holdfast.kernel.settings import JOB_TYPES

_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_PLAIN_IP = re.compile(rf"({_OCTET}(?:\.{_OCTET}){{3}})(?:/(?:3[0-2]|[12]?[0-9]))?\Z")
"""A v4 address in its one form, with or without the length of its prefix."""
_MAC = re.compile(
    r"(?:[0-9a-f]{2}(?::[0-9a-f]{2}){5}|[0-9a-f]{2}(?:-[0-9a-f]{2}){5}"
    r"|[0-9a-f]{4}(?:\.[0-9a-f]{4}){2}|[0-9a-f]{12})\Z"
)


def normal_ip(text: str, field: str = "primary_ip") -> str:
    """The address in its one form, without its mask: `10.0.0.1/24` is `10.0.0.1`, `FE80:0::1` is
    `fe80::1`. A v4 address written as v6 is the v4 address. Raises InvalidValue.
    """
    # Nearly every address is in this form, and ip_interface takes 15 times as long.
    if isinstance(text, str) and (plain := _PLAIN_IP.match(text)):
        return plain[1]
    try:
        # ip_interface would also accept a number.
        address = ip_interface(text if isinstance(text, str) else "").ip
    except ValueError:
        raise InvalidValue(
            f"{_shown(text)} is not an IP address: write it as 10.1.2.3, 10.1.2.3/24 or fe80::1/64",
            field=field,
        ) from None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


def normal_mac(text: str) -> str:
    """The MAC address in its one form, `02:00:00:00:00:01`. Raises InvalidValue."""
    lower = text.lower() if isinstance(text, str) else ""
    if not _MAC.match(lower):
        raise InvalidValue(
            f"{_shown(text)} is not a MAC address: write it as 02:00:00:00:00:01",
            field="mac_address",
        )
    if lower[2] == ":":
        return lower
    digits = re.sub("[:.-]", "", lower)
    return ":".join(digits[at : at + 2] for at in range(0, len(digits), 2))


def check_job_type(value: str) -> str:
    """Return a valid job type. Raises InvalidValue."""
    if value in JOB_TYPES:
        return value
    raise InvalidValue(
        f"{_shown(value)} is not a job type: use {' or '.join(JOB_TYPES)}", field="job_type"
    )


def check_dscp(value: int | None) -> int | None:
    """Return a valid code point of differentiated services, or None. Raises InvalidValue."""
    number = isinstance(value, int) and not isinstance(value, bool)
    if value is None or (number and 0 <= value <= DSCP_MAX):
        return value
    raise InvalidValue(f"{_shown(value)} is not a DSCP: use 0 to {DSCP_MAX}, or none", field="dscp")


def check_batch(
    items: object, field: str, required: tuple[str, ...], optional: str
) -> list[Mapping[str, Any]]:
    """Return a caller's batch as a list of mappings that have the required names and maybe the
    optional one. Raises InvalidValue, also for a batch that is too long.
    """
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
        raise InvalidValue(
            f"{_shown(items)} is not a batch of {field}: give a list of objects", field=field
        )
    batch = list(islice(items, BATCH_MAX + 1))
    if len(batch) > BATCH_MAX:
        raise InvalidValue(
            f"a batch may have at most {BATCH_MAX} {field}: split it into several", field=field
        )
    for item in batch:
        if not isinstance(item, Mapping) or set(item) - {optional} != set(required):
            raise InvalidValue(
                f"each of the {field} of a batch is an object with {', '.join(required)} "
                f"and optionally {optional}: {_shown(item)} is not",
                field=field,
            )
    return batch


def _shown(value: object) -> str:
    return ascii(value)[:60]
