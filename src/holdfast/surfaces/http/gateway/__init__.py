"""The gateway over HTTP.

messages.py    what is sent and answered
sharing.py     concurrent accepts in one commit
routes.py      the routes
server.py      all of it, as one application
"""
