"""Running commands: custody of a process tree, signals, exit status.

The guardian and the wrapper on standby run without the rest of the package, so that they start in
milliseconds and take little memory. So `cgroup`, `fifo`, `guardian`, `scan`, `standby` and
`syscalls` import the standard library alone, and of that only what loads fast.
"""
