"""The command line: `holdfast AREA VERB`.

entry.py          where the program starts: errors become one line and an exit status
quick.py          the commands that scripts call in loops, without loading the full command line
options.py        what the command line takes for a request, for both parsers
imports.py        imports of libraries without what a short command does not need
root.py, hints.py the areas, each loaded when it is used, and the commands that messages show
command.py        commands made from operations, and groups of commands
connection.py, store_options.py
                  the connection that a command works on, and the options that choose it
output.py         the standard streams
render.py         tables for people, JSON for programs
logs.py           what the library logs
custody.py        commands that run another program under a claim
agents.py  doctor.py  gateway.py  holds.py  jobs.py  locks.py  log.py  mcp.py  metrics.py
    network.py  serve.py  store.py  swap.py  token.py  tour/  workflows.py    an area each
agent_resolve.py, job_pick.py, job_status.py, lock_acquire.py, lock_run.py
                  the commands of quick.py
agent_run.py, job_run.py, workflow_run.py
                  `run` of an area, loaded without the rest of the area
gateway_serve.py, gateway_process.py, gateway_host_process.py, server_process.py, job_watch.py,
    lock_text.py, lock_notes.py  further parts of an area
"""
