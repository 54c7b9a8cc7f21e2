"""The gateway over HTTP.

messages.py       requests and responses
shared_commit.py  concurrent accepts in one commit
routes.py         the routes
server.py         all of it, as one application
"""
