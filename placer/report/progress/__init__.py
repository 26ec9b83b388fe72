"""The progress of a run, as a person sees it while it runs."""
