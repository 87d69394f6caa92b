"""One run of a job: what it began with, its parts, and what it leaves."""
