"""The outside world, one module a product.

An adapter talks to a system that is not a store. It knows the kernel and the domains' ports, and
holds no rule.
"""
