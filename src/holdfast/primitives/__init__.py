"""Rules over any store: the journal, locks, counted holds, queues, renewal.

Nothing here knows what an agent, a job or a router is, or opens a file, a socket or a process.
"""
