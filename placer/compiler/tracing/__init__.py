"""Traces functions of the user at compile time.

Only this package of the compiler imports JAX, and only for specs with `call`, `trace` or
`metric` ops, or with optax optimizers.
"""
