"""The page of the server: one HTML document with its style and scripts, and the routes it calls.

routes.py  the routes; counts of agents and states of gateways, read no more often than needed
assets.py  the files of the page, and what a browser may do with them
assets/    the files themselves; nothing is built
"""
