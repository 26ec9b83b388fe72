"""Caches of compiled code, in the user's cache folder."""
