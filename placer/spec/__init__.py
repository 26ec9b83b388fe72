"""Specs: reads a model from YAML, with errors that point into the file."""

from placer.spec.jsonschema import json_schema
from placer.spec.parse import load, load_text

__all__ = ["json_schema", "load", "load_text"]
