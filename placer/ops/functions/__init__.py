"""Traced JAX functions, cut into regions by the guards inside them: each is an op.

The compiler cuts a function to find its regions. A node cuts it again, for the number
of its local rows, to run one region. The compiler passes the name of the function, and
its arguments as text, to the node program.
"""
