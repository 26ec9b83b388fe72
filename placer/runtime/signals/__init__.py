"""Handles signals to a run."""
