"""Benchmarks: each measures its yardstick in the same run, because machines are noisy.

A benchmark is a function that takes a directory to work in and returns a flat result; `headrace
bench NAME --json` prints it as one JSON object.
"""
