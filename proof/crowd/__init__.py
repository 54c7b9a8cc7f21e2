"""Crowds: many processes that use one store and record what they see."""
