"""Parses YAML to a tree with positions, and collects the errors of a spec."""
