"""What a person looks at: tables, graphs, explanations, a run in progress."""
