"""Evidence that takes long or is statistical: crowds, power loss, the soak, mutation. `make
prove` runs it.
"""
