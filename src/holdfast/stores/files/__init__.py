"""Plain files that people read, for records with a layout; an inner SQLite store for all else.

store.py        the port: the latch, and the order of a change
transaction.py  the transaction: reads and writes of files, or of the inner store
snapshot.py     one moment of files and inner store; inotify
cache.py        what this process has read, and whether it is still valid
documents.py    JSON of a file: keys as file names, records as documents
redo.py         what the files of a committed change must hold, and writing them
disk.py         reading and replacing files so that they survive a power loss
folders.py      the folders of a store, their locks and their owners
signs.py        files that only show volatile records
repair.py       damaged files: set aside and restored; folders without a record
maintenance.py  check, backup and restore
copy.py         copies to and from another store
"""
