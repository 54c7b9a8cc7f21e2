"""The page of the server: one HTML document with its style and scripts, and what it alone asks for.

routes.py      what the page asks for
census.py      counts of agents and states of gateways, read no more often than needed
assets.py      the files of the page, and what a browser may do with them
assets/        the files themselves; nothing is built
"""

from holdfast.surfaces.http.page.routes import page_routes

__all__ = ["page_routes"]
