"""Warnings by Python's `logging`, imported at the first one: most commands log nothing, and start
faster without it. The journal is in journal.py.
"""


def warn(text: str, *values: object) -> None:
    import logging

    logging.getLogger("holdfast.locks").warning(text, *values)
