"""Runs predictions, from the request to the file with the outputs."""
