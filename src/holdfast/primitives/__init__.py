"""Rules over any store, without I/O of their own: they know no agent, job or router.

locks/           locks on resources: sets, queues, priorities, deadlocks
queue/           a durable queue with one slot and epochs
holds.py         counts that cannot leak
journal.py       reads of the journal: followers, tails, lag
renewal.py       the background thread that renews what this process holds
steady_clock.py  the store's clock without recent jumps
deadline.py      the time limit of a call over several transactions
log.py           warnings
"""
