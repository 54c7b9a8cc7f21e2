"""Plain files that people read, for records with a layout; an inner SQLite store for all else.

store.py        the port: the latch, and the order of a change
picture.py      how a reader sees one moment of everything
transaction.py  the verbs, sent to files or to the inner store
shelf.py        the records of a space as one transaction sees them
pile.py         all records of a space, in order and by index
cabinet.py      what this process has read, and whether it still holds
drawer.py       the same of a space with a file for each record
watch.py        which names of a folder were changed, as the kernel tells
sheet.py        a file with many records: its JSON, taken apart and put together
rendering.py    JSON for people, whole or put together of parts
redo.py         what the files of a committed change are to hold
bringing.py     from a change to its files, once or again
disk.py         reading and replacing files, so that they are there after a power loss
folder_lock.py  the locks that other programs take in the same folders
mending.py      damaged files: set aside and restored
signs.py        files that only show
naming.py       keys as names of files
debris.py       what lies among the folders and is no record
folders.py      where everything lies
owning.py       whose a folder is that lies elsewhere
upkeep.py       check, backup and restore
copying.py      all of a store for another, and from another
"""
