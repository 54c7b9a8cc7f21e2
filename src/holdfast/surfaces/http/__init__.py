"""What every HTTP server of ours needs, and the servers themselves.

access_gate.py  host, origin, token and size of a request, before any route
bearer.py       the token in its file
problems.py     errors as responses
queries.py      refuses unknown query parameters
openapi.py      what the schema says of bodies
reference.py    the schema as a page
changes.py      waits for a change of the store, without a thread for each waiter
sse.py          the journal as a stream of events, resumable
connections.py  slow and idle connections within bounds
http_server.py  a server from its start to its graceful end
metrics.py      what Prometheus scrapes
gateway/        the gateway's routes
page/           the page for browsers
server/         the server of a whole store
"""
