"""The layout of stores: folders with modes and JSON keys, and the schemas of databases."""

import json
import re
import sqlite3
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import holdfast
from tests.frozen import inside
from tests.frozen.shape import general, indented, shape

_QUERIES = {
    "column": """
        SELECT format('%s.%s %s nullable=%s', table_name, column_name, data_type, is_nullable)
               || coalesce(' default ' || column_default, '')
               || coalesce(' collate ' || collation_name, '')
        FROM information_schema.columns
        WHERE table_schema = 'holdfast' ORDER BY table_name, ordinal_position""",
    "index": """
        SELECT indexdef FROM pg_indexes
        WHERE schemaname = 'holdfast' ORDER BY tablename, indexname""",
    "relation": """
        SELECT format('%s %s %s', relname, relkind, relpersistence)
        FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace
        WHERE nspname = 'holdfast' AND relkind <> 'i' ORDER BY relname""",
    "function": """
        SELECT proname FROM pg_proc JOIN pg_namespace n ON n.oid = pronamespace
        WHERE nspname = 'holdfast' ORDER BY proname""",
    "trigger": "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal ORDER BY tgname",
}
"""The facts of a PostgreSQL store in the snapshots, and how they are read."""


def tree(root: Path, leave_out: Iterable[str] = ()) -> str:
    """Return every file below a folder with its mode and the shape of its JSON.

    Files whose names differ by a number or an id only are one entry. `leave_out` names files and
    folders that are not shown.
    """
    hidden = set(leave_out)
    found: dict[str, list[Path]] = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root)
        # The FIFOs in a folder of wake-ups belong to those who wait at this very moment.
        waits = any(part.endswith("-wake") for part in name.parts[:-1])
        if not waits and not hidden.intersection(name.parts):
            found.setdefault(general(str(name)), []).append(path)
    lines: list[str] = []
    for shown, paths in found.items():
        modes = sorted({f"{stat.filemode(path.lstat().st_mode)}" for path in paths})
        lines.append(f"{' or '.join(modes)}  {shown}")
        lines += indented(_contents([path for path in paths if path.is_file()]))
    return "\n".join(lines) + "\n"


def _contents(paths: list[Path]) -> list[str]:
    values: list[Any] = []
    others: set[str] = set()
    for path in paths:
        data = path.read_bytes()
        try:
            values += (
                [json.loads(line) for line in data.splitlines()]
                if path.suffix in (".jsonl", ".ndjson")
                else [json.loads(data)]
            )
        except ValueError:
            others.add(_plain_kind(data))
    return [*(shape(*values) if values else []), *sorted(others)]


def _plain_kind(data: bytes) -> str:
    if data.startswith(b"SQLite format 3"):
        return "(SQLite)"
    if not data:
        return "(empty)"
    try:
        data.decode()
    except ValueError:
        return "(bytes)"
    return "(text)"


def sqlite_schema(path: Path) -> str:
    """Return the statements that make the tables and indexes of a database, and its pragmas."""
    connection = sqlite3.connect(path)
    try:
        pragmas = ("application_id", "user_version", "journal_mode", "page_size", "auto_vacuum")
        lines = [
            f"{name} = {connection.execute(f'PRAGMA {name}').fetchone()[0]}" for name in pragmas
        ]
        query = "SELECT type, name, sql FROM sqlite_master ORDER BY tbl_name, type DESC, name"
        for kind, name, sql in connection.execute(query):
            lines += ["", f"{kind} {name}", *indented((sql or "(automatic)").splitlines())]
    finally:
        connection.close()
    return "\n".join(lines) + "\n"


def postgres_schema(url: str) -> str:
    """Use every domain on a new PostgreSQL store, and return its tables, columns and indexes."""
    import psycopg

    with holdfast.connect(url) as hf:
        for number, bring_about in enumerate(inside.STATES, 1):
            bring_about(hf, str(number))
    lines: list[str] = []
    with psycopg.connect(url) as connection:
        for what, query in _QUERIES.items():
            rows = connection.execute(query.encode()).fetchall()
            lines += [f"{what}: {re.sub(r'[0-9]{6,}', 'N', str(row[0]))}" for row in rows]
    return "\n".join(lines) + "\n"
