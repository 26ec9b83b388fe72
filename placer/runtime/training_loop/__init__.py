"""The steps of a run, from the preparation to the end."""
