"""Reports for people: tables, graphs, explanations, the progress of a run."""
