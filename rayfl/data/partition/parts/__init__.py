"""Parts that combine in `partition.kind: composed`: one small class per file, or a user's own class by import path.

How labels are spread is in `rayfl.data.partition.labels` and `clusters`, whose kinds are parts too.
"""
