"""The charts of a report page, as SVG."""
