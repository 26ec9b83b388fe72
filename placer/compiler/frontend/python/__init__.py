"""The Python front end: calls are recorded as entries of a spec.

The builder for YAML specs reads these entries, both when an op is called and when the
program is compiled. So types, defaults and messages are the same as for YAML.
"""
