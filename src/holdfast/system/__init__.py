"""The operating system: who may use the files and folders that Holdfast makes."""
