"""Computes XXH64 of many byte strings at once, in machine code."""
