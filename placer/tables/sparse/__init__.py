"""Sparse tables: rows of an embedding by 64-bit key, created when keys are admitted.

`table` contains the table of one server. A batch passes the other modules in this order:

1. `merging` sums gradients by key; `batch_keys` orders the keys by server.
2. `hashing` maps a key to a partition; `index` finds the row of a key by its `slots`.
   Partitions grow one at a time.
3. `admission_rule` and `admission_loops` decide which new keys are given a row.
   `row_memory` allocates rows; `initial_rows` computes their first values.
4. `row_rule` and `row_updates` apply the optimizer's rule to each row once.
5. `forgetting` drops rows that were not seen for long or have little effect. `capacity` and
   `eviction` drop rows above the capacity.
6. `saving` reads partitions as they were when the save began, while the table changes.
   `kept_rows` first copies the rows that a save still needs. `partition_arrays` and
   `loading` define the saved arrays.

`storage` holds the arrays of a table (`state`) within the `memory` of a server. Work per key
or row is done by loops over a batch, which numba compiles to run without the interpreter
lock. No module here imports JAX.
"""
