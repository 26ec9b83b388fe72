"""Writes a first spec, for a table of the user or for a data set that ships with
scikit-learn."""
