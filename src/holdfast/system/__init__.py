"""The operating system: who may use the files that Holdfast makes, and locks on files."""
