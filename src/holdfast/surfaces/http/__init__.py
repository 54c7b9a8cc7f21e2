"""The HTTP servers: of a whole store, and of one gateway.

http_server.py    uvicorn with bounded connections, from its start to its graceful stop
access.py         the token in its file; host, origin, token and size of a request, before any route
problems.py       errors as responses, and the strict reading of bodies and queries
openapi.py        the web application and its OpenAPI, also as a page
events.py         the journal as a stream of events, and waits for a change of the store
gateway.py        the server of one gateway; shared_commit.py stores concurrent requests at once
server/           the server of a whole store
page/             the page for browsers
"""
