"""Benchmarks: each measures its yardstick in the same run, because machines are noisy.

A benchmark is a function that takes a directory to work in and returns figures by name. `headrace
bench NAME --json` prints them as one JSON object.
"""
