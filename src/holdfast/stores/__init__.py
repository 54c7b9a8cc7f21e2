"""Where records live: memory, sqlite, files, postgres, and opening, which turns a URL into one of them.

Belongs here: how bytes are kept, locked, synced and woken for. A store knows the kernel alone; it holds no rule and names no
domain.
"""
