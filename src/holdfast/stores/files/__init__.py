"""Plain files that people read, for records with a layout; an inner SQLite store for all others.

store.py        the port, and the order of stage, commit, apply and clear
transaction.py  snapshots and transactions over files and inner store, and the files they change
latch.py        turns to change files, locks of other programs, recovery after a kill
redo.py         the redo log: committed changes of files, and their application
records.py      the records of a space, and a transaction's view of them
cache.py        what this process has read, and whether it is still current
members.py      the text of a file of many records: changes spliced into it, and found in it
documents.py    JSON of a file, and the restoration of a damaged file
disk.py         files that are read and replaced so that they survive a power loss
folders.py      where everything is, names of files, and which store owns a folder
signs.py        files that only show volatile records
maintenance.py  the whole store with all namespaces: check, backup and restore
copy.py         copies to and from another store
"""
