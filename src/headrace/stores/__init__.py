"""Stores: sinks that can be queried. Each keeps its data in a key-value store, behind `ingest`."""
