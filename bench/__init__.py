"""Holdfast and its peers, side by side in one run: `python -m bench` writes docs/benchmarks.md.

measure.py     workers, rounds, and what is kept of them
machine.py     what the run was made on
work.py        the work itself: Holdfast's way and the raw one, on the same rows
rows_*.py      a family of figures each: `NAME` and `measure(lab)`
report.py      the page
pictures.py    its pictures, drawn with plain strings
"""
