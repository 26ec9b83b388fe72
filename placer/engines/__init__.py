"""The interface for engines in other packages; see `placer.engines.engine`."""
