"""Samples as bytes: chunks of many series, and which chunks a bucket of time has."""
