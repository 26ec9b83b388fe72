"""What signals do to a run."""
