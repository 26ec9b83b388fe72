"""The interface of engines, for engines of other packages; see `placer.engines.engine`."""
