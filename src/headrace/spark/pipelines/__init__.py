"""Pipelines on Spark: workers as tasks, DataFrames as sources, the sinks of tasks.

- `spark_engine`: what Spark adds to the builder of pipelines.
- `spark_runner`: a Spark job for each stage; `slot_shares` says how many workers it gets.
- `task_resources`: what tasks ask for besides a slot.
- `spark_stage`: stages whose function takes DataFrames.
- `dataframe_source`: a DataFrame, stored once before its first unit runs.
- `stage_rows`: what a stage has produced, as a DataFrame.
- `sink_feed`, `sink_batches`: what a stage has produced, to a sink, in numbered batches.
"""
