"""Wiring: from settings to a connected store with its domains, adapters and background services."""
