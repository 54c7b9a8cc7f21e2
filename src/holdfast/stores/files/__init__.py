"""Plain files that people read, for records with a layout; an inner SQLite store for all others.

store.py        the port, and the order of stage, commit, apply and clear
latch.py        turns to change files, locks of other programs, recovery after a kill
transaction.py  snapshots and transactions over files and inner store, and the files they change
records.py      the records of a space, and a transaction's overlay over them
cache.py        what this process has read, and whether it is still current
inotify.py      changed names in a folder, from the kernel
documents.py    JSON of a file; keys as file names
redo.py         the redo log: committed changes of files, and their application
disk.py         files that are read and replaced so that they survive a power loss
folders.py      where everything is, and which store owns a folder
signs.py        files that only show volatile records
repair.py       damaged files, and folders without a record
namespaces.py   every namespace with its files, for work on the whole store
maintenance.py  check, backup and restore
copy.py         copies to and from another store
"""
