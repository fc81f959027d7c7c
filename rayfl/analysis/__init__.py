"""Analysis of results: metrics against the planted clusters, figures, tables, the report. Nothing here trains."""
