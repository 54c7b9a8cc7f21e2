"""The rooms: one a domain, thin readings of the primitives, that never import each other.

Belongs here: what names an agent, a host, a job or a recipe. What one room needs of another travels as a value.
"""
