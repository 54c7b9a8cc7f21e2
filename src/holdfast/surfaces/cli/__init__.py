"""The command line: `holdfast AREA VERB`.

entry.py      where the program starts: errors become one line and an exit status
quick.py      what scripts call in loops, without loading the full command line
root.py       the areas, each loaded when it is asked for
session.py    the connection that a command works on, and its options
render.py     tables for people, JSON for programs
jobs.py  log.py  store.py  tour.py    an area each
"""
