"""The memory of a process: aligned and reused buffers, allocator settings, limits."""
