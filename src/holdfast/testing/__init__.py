"""Shipped for whoever writes a store or a program on Holdfast: the conformance suite, ManualClock, fault points, and the
power-loss simulator.
"""
