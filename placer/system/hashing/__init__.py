"""XXH64 of many byte strings at once, as machine code."""
