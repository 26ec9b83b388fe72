"""Starts the nodes of a build, watches them and stops them."""
