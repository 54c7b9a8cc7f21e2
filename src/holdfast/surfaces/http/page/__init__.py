"""The page of the server: one HTML document with its style and scripts, and what it alone asks for.

routes.py      what the page asks for
looking.py     agents and gateways, looked at no more often than they must be
assets.py      the files of the page, and what a browser may do with them
assets/        the files themselves; nothing is built
"""

from holdfast.surfaces.http.page.routes import page_routes

__all__ = ["page_routes"]
