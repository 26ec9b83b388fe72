"""Reads the model of a spec. Errors name the position in the file."""

from placer.compiler.frontend.jsonschema import json_schema
from placer.compiler.frontend.parse import load, load_text

__all__ = ["json_schema", "load", "load_text"]
