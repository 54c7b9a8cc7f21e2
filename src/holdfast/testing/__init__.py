"""Shipped for whoever writes a store or a program on Holdfast: the conformance suite, ManualClock,
fault points, the power-loss simulator, and the linearizability checker.
"""
