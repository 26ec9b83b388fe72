"""Traced JAX functions, cut into regions by the guards inside. A region is an op.

The compiler cuts a function to find its regions. A node cuts it again for the number of
its local rows, to run one region. The node program contains the name of the function,
and its arguments as text.
"""
