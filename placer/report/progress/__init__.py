"""Displays the progress of a run while it runs."""
