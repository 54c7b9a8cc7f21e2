"""The command line: `holdfast AREA VERB`.

entry.py      where the program starts: errors become one line and an exit status
quick.py      what scripts call in loops, without loading the full command line
root.py       the areas, each loaded when it is asked for
group.py      a group of commands, which names them to whoever asks for another
connection.py the connection that a command works on, and its options
output.py     what may be shown, and what happens when it cannot be written
render.py     tables for people, JSON for programs
picking.py    `jobs pick`, which both parsers end in
agents/  doctor.py  gateway/  holds.py  jobs/  locks/  log.py  mcp.py  metrics.py  network/  serve/  store.py  swap/
    token.py  tour/  workflows/    an area each
"""
