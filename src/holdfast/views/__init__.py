"""Read-only pictures across domains.

Belongs here: answers that need more than one room, such as who holds what and through which chain. Nothing here writes.
"""
