"""Starts all nodes of a build on this machine, watches them and ends them."""
