"""Command line, HTTP and MCP: parse, call one domain method, render.

Belongs here: flags, routes, colours and words. No rule lives in a surface.
"""
