"""The command line: `holdfast AREA VERB`.

entry.py          where the program starts: errors become one line and an exit status
quick.py          what scripts call in loops, without loading the full command line
root.py, areas.py the areas, each loaded when it is used
command.py        commands made from operations, and groups of commands
connection.py     the connection that a command works on, and its options
output.py         standard output and standard error
render.py         tables for people, JSON for programs
custody.py        commands that run another program under a claim
agents.py  doctor.py  gateway.py  holds.py  jobs.py  locks.py  log.py  mcp.py  metrics.py
    network.py  serve.py  store.py  swap.py  token.py  tour/  workflows.py    an area each
agent_*.py, gateway_*.py, job_*.py, lock_*.py, serve_process.py, workflow_*.py
                  parts of an area: programs that it runs, waiting, words
"""
