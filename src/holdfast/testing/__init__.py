"""For users who write a store or test a program on Holdfast: the conformance suite, ManualClock and
fault points.
"""
