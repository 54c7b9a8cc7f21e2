"""Where records live: memory, sqlite, files, postgres; `url` opens the one that a URL names.

A store keeps, locks and syncs bytes, and wakes waiters. It knows the kernel and the operating
system (`processes`, `system`); it holds no rule and names no domain.
"""
