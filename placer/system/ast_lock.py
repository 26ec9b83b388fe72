"""A lock for code that builds Python syntax trees; numpy does so to read a header.

CPython 3.11 occasionally raises a SystemError if two threads build syntax trees at the
same time (python/cpython issue 106905). Nodes may be threads of one process.
"""

from threading import Lock

AST_LOCK = Lock()
