"""What is made of results: metrics against the truth, figures, tables, the report. Nothing here trains."""
