"""Rules over any store, without I/O of their own: they know no agent, job or router."""
