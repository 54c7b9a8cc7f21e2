"""Holdfast keeps agents, jobs and shared resources from stepping on each other."""

__version__ = "0.1.0"
