"""The command line: one command, or group of commands, a file."""

from headrace.cli.program import app, main

__all__ = ["app", "main"]
