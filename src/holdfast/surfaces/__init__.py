"""Command line, HTTP with its page, and MCP: parse, call an operation, render.

Flags, routes, colours and words are here. No rule is.
"""
