"""A claim lives as long as the process tree that it was taken for: with real processes, and real
kills.
"""
