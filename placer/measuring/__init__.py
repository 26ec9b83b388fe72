"""Measures the costs of a spec on this machine, for `placer place --measure`."""
