"""What placer needs of the machine: memory, caches, files, cores."""
