"""Caches of compiled code, in the user's folder for caches."""
