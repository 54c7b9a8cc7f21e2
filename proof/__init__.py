"""Evidence that takes long or is statistical: histories, power loss, the soak, mutation. `make
prove` runs it.
"""
