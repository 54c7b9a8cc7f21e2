"""SQLite, embedded: one machine, nothing to start. The default store.

store.py        the port, over a durable and a volatile file
handles.py      the SQLite handles of this process, and forks
database.py     one file: connections, write turns, durable commits, checkpoints
gate.py         one writer at a time, fairly, among threads and processes; the volatile file's
                last token, in shared memory
gate_thread.py  the thread that waits at a closed gate for its callers
wal.py          the write-ahead log: shared syncs, failed syncs, its size limit
schema.py       tables, versions and eras
transaction.py  the transaction, and put_new and delete_if in one statement
journal.py      reading the journal of both files
fifos.py        wake-ups between processes
users.py        who has the store open, and which volatile file they share
filesystem.py   where a store may lie, and how its files are made
errors.py       SQLite's errors as ours
maintenance.py  check, backup and restore
copy.py         copies from and to another store
"""
