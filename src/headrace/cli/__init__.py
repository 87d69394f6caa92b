"""The command line.

`commands/` has one command, or group of commands, a file; `options/` the options that several of
them take; `render/` how they print. `program` assembles them and decides how each one ends.
"""

from headrace.cli.program import app, main

__all__ = ["app", "main"]
