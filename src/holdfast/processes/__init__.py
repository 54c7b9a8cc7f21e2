"""Running commands: custody of a process tree, signals, exit status.

`cgroup`, `fifo`, `guardian`, `kill`, `libc` and `scan` use the standard library alone, since the
guardian runs without the rest of the program.
"""
