"""The settings of sparse tables."""
