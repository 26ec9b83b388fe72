"""Runs all nodes of a build on this machine, and ends them whatever happens."""
