"""The Python front end: what is called is recorded as entries of a spec.

The builder that reads YAML reads them too, at once and when a program is compiled, so
that types, defaults and messages are the same.
"""
