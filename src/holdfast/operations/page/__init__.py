"""What the page shows: read-only views over several domains."""
