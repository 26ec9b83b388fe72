"""The Python front end: records calls as entries of a spec.

The builder of YAML specs reads these entries, when an op is called and again when the
program is compiled. So types, defaults and messages are the same as in YAML.
"""
