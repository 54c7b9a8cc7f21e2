"""Command line and HTTP: parse, call one domain method, render.

Belongs here: flags, routes, colours and words. No rule lives in a surface.
"""
