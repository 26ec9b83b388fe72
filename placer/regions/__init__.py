"""A JAX function cut where its guards say: the regions of its jaxpr are ops.

The compiler cuts to know what regions there are, and a node cuts again, for the rows it
has, to run one: what crosses between the two is the function's name and its arguments
as text.
"""
