"""The command line: `holdfast AREA VERB`.

entry.py          where the program starts: errors become one line and an exit status
quick.py          `jobs pick` without loading the full command line, for scripts that loop
root.py, hints.py the areas, each loaded when it is used, and the commands that messages show
command.py        commands made from operations, and groups of commands
connection.py     the connection that a command works on, and its options
output.py         the standard streams
render.py         tables for people, JSON for programs
logs.py           what the library logs
custody.py        commands that run another program under a claim
agents.py  doctor.py  gateway.py  holds.py  jobs.py  locks.py  log.py  mcp.py  metrics.py
    network.py  serve.py  store.py  swap.py  token.py  tour/  workflows.py    an area each
agent_run.py, job_run.py, lock_run.py, workflow_run.py
                  `run` of an area, loaded without the rest of the area
gateway_serve.py, gateway_process.py, gateway_host_process.py, server_process.py, job_watch.py,
    lock_text.py  further parts of an area
"""
