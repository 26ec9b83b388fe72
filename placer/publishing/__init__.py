"""Publications: parameters and changed rows for serving processes.

A folder of publications has the code of a model, and a folder for each publication. A base has all
rows of the sparse tables, a delta those that have changed since the publication before, and the keys
that were removed. The reader is `served.py`, which needs only NumPy and pyarrow.
"""
