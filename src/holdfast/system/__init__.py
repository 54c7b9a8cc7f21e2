"""The operating system: access to the files that Holdfast makes, locks on files, syncs, inotify."""
