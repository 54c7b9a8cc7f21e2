"""Running commands: custody of a process tree, signals, exit status.

`tree`, `scan` and `guardian` use the standard library alone, since the guardian runs without the rest of the program.
"""
