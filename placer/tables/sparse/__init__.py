"""Sparse tables: rows of an embedding by 64-bit key, created as keys earn them.

`table` has the table of one server. In the order in which a batch passes the modules:

1. `merging` sums what a batch has of each key; `batch_keys` orders its keys by server.
2. `index` finds the row of a key, in the partition that `hashing` gives, by its `slots`;
   partitions grow one by one.
3. `admitting` and `admission` decide which new keys get a row. `store` has the rows,
   `initial_rows` their first values.
4. `row_rule` and `row_updates` apply the optimizer's rule to each row once.
5. `forgetting` drops rows that were not seen, or that have little effect; `capacity` and
   `eviction` those over the capacity.
6. `saving` reads partitions as they were, while the table changes: before that happens,
   `kept` copies what a save still needs. `partition_arrays` and `loading` say what is saved.

`storage` has the arrays of a table (`state`), within the `memory` of a server. What is done
for each key or row is a loop over a batch, compiled by numba without the interpreter lock,
that works on these arrays. Nothing here imports JAX.
"""
