"""Ports of this machine: a free one to keep across restarts, and data that waits at one."""

import random
import socket
from contextlib import suppress
from pathlib import Path


def spare_port() -> int:
    """A free port below the range from which the kernel assigns ports to sockets bound to port 0,
    so that no other program gets it by chance.
    """
    least = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = range(max(least // 2, 1024), least)
    for port in random.Random().sample(ports, len(ports)):
        with suppress(OSError), socket.create_server(("", port)):
            return port
    raise AssertionError(f"no port from {ports.start} to {ports.stop - 1} is free")


def has_unread(port: int) -> bool:
    """Whether a connection to a local port has data that the server has not read."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(
        row[1].endswith(f":{port:04X}") and row[3] == "01" and not row[4].endswith(":00000000")
        for row in rows
    )
