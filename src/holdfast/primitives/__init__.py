"""Rules written once over any store, true of any record: the journal, locks, counted holds, queues,
renewal.

Nothing here knows what an agent, a job or a router is. Nothing touches a file, socket or process.
"""
