"""Access to the machine: memory, caches, files, cores."""
