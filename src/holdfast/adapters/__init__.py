"""The outside world, one file a product.

Belongs here: everything that talks to a system which is not a store. An adapter knows the kernel and the domains' ports, and
holds no rule.
"""
