"""Crowds: processes that use one store at once, some of them killed or stopped by a seed.

    plan.py           how large a crowd is and what befalls it
    crowd.py          starts the processes, kills and stops them, waits for the end
    worker.py         the program of one process: threads that perform a workload
    calls.py          a workload of single calls; its history is checked for linearizability
    lock_jobs.py      a workload of jobs that acquire locks; lock_history.py checks it by the rules

Each run prints its seed. `proof.bugs` has the faults that can be planted into a crowd.
"""
