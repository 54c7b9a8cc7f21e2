"""Metrics for Prometheus, whose library comes with the extra `server`. docs/operations.md lists
them.

families.py  the metric families of each domain and of the store
sources.py   the metrics of a connection as text; a part that fails does not hide the others
"""
