"""What a stage does to rows: functions, classes, and calls of HTTP services."""
