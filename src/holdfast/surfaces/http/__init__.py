"""What every HTTP server of ours needs, and the servers themselves.

bearer.py      the token in its file
doorman.py     who is let in: host, origin, token, size
problems.py    errors as answers
queries.py     no unknown parameters
openapi.py     what the schema says of them
reference.py   the schema as a page
changes.py     asleep until the store changes, without a thread for each that waits
sse.py         the journal as a stream of events, resumable
connections.py slow and idle connections within bounds
serving.py     a server from its first moment to its graceful end
gateway/       the gateway's routes
server/        the server of a whole store
"""
