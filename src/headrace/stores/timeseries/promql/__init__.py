"""PromQL over columns: all steps of a range query at once."""
