"""Rules written once over any store, true of any record.

Belongs here: the journal and its bounds, locks, counted holds, queues, and the keeper of signs of life. Does not belong here:
what an agent, a job or a router is, and any file, socket, process or driver.
"""
