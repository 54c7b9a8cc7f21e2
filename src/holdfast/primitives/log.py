"""Warnings about locks. Most commands log nothing, and start faster without `logging`."""


def warn(text: str, *values: object) -> None:
    """Log a warning."""
    import logging

    logging.getLogger("holdfast.locks").warning(text, *values)
