"""The five domains: thin rules on top of the primitives. They never import each other.

What names an agent, a host, a job or a recipe is here. What one domain needs of another is passed
to it as a value.
"""
