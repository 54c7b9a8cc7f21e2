"""What operations answer, and what they ask before they call a domain: the same over HTTP as with
--json on the command line.

A surface renders by these values, so that two of them cannot drift apart.
"""
