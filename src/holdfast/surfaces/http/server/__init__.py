"""The server of a whole store: every operation under /v1.

application.py  the application, composed of all routes; /health, /ready and /metrics
routes.py       the routes of operations
executor.py     runs operations in bounded threads, with waits that end when the client is gone
sessions.py     the one-time link and the session that it begins
"""
