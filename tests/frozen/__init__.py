"""What users see of Holdfast, frozen as text, so that a change of it shows as a diff.

`data/` holds the snapshots. `test_frozen.py` makes each of them again from the running program and
fails with a unified diff where the two differ. A difference means one of three things:

- You changed what users see on purpose. Rewrite the snapshots, read `git diff tests/frozen/data`
  and commit it together with the change.
- You only reworded help or documentation. `help.txt` and `mcp.size.txt` change; nothing else may.
- You did not mean to change it. Then it is a regression: keep the snapshot and repair the code.

Rewrite all snapshots with `make frozen` or `python -m tests.frozen`; words after it choose among
them as `pytest -k` does, as in `python -m tests.frozen commands`. `answers.files.txt` shows only
what differs from the answers on SQLite, so rewrite the two together.

    openapi.*.json     paths, parameters, schemas and response codes, without prose
    commands.txt       every command with its parameters; help.txt has the prose
    mcp.json           the tools' schemas; mcp.size.txt has the size of the whole list
    statuses.txt       error code, exit status, HTTP status, exception class
    python.txt         public Python names with their signatures
    answers/*.txt      exit status and JSON shape of commands and HTTP requests, on SQLite
    answers.files.txt  the same on a files store, where it differs
    metrics.txt        names, types and labels of all metrics
    programs.*.txt     commands that run programs or serve: exit status and output
    layout.*.txt       files, modes, JSON keys; tables, columns and indexes

All imports of Holdfast's internals are in `inside.py`: after a rename only that module changes.
"""
