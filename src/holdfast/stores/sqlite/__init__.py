"""SQLite, embedded: one machine, nothing to start. The default store.

store.py        the port, over a durable and a volatile file
handles.py      the SQLite handles of this process, and what a fork makes of them
database.py     one file: connections, turns to write, durable commits, checkpoints
gate.py         whose turn it is to write, fairly, among threads and processes
gate_thread.py  the thread that waits at a shut gate for its callers
wal.py          syncing the write-ahead log by a descriptor of our own, shared among threads
schema.py       tables, versions and eras
transaction.py  the verbs
journal.py      reading what happened, of both files
hotpath.py      put_new and delete_if
counter.py      how far the volatile file's tokens have come, in shared memory
fifos.py        wake-ups between processes
users.py        who has it open, and which boot ids are at work
filesystem.py   where a store may live, and with which permissions
translate.py    SQLite's errors as ours
upkeep.py       check, backup and restore
copying.py      all of a store for another and from another
"""
