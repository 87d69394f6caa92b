"""Exactly-once pipelines on Spark: the public API and nothing else."""
