"""Ports for programs that get a fixed one, and the same again after they were killed."""

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
