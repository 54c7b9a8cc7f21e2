"""The server of a whole store: every operation of the library under /v1.

application.py  the application, composed of all routes
operation.py    an operation, written once: its route, its OpenAPI and its row in the table of surfaces come from that
fields.py       the fields that requests are made of, and what the OpenAPI says of them
routing.py      from an operation to its route
desk.py         where operations are carried out: in bounded threads, with waits that end when nobody waits any more
agents.py, gateways.py, holds.py, jobs.py, locks.py, log.py, network.py, store.py, workflows.py
                the operations, by area
catalogue.py    all of them
standing.py     /health, /ready and the events
sessions.py     the one-time link and the session that it begins
told.py         no grant is given back that somebody was told of
segments.py     slashes inside of a name
"""
