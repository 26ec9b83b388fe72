"""The settings of sources of rows."""
