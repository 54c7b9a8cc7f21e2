"""Hypothesis without a time limit an example: on a shared machine that would fail for being slow, which proves nothing."""

from hypothesis import settings

settings.register_profile("holdfast", deadline=None)
settings.load_profile("holdfast")
