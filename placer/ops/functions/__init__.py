"""What the ops compute, in JAX: a function of the op's name in its family's file.

A function takes the operands and, by keyword, the attributes with the declaration's
defaults; one that divides by the rows of the global batch takes `count` besides.
Where JAX's own derivative would keep more than the declaration says, the rule is
written out with `jax.custom_vjp`.
"""
