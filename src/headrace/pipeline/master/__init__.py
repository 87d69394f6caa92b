"""The master of a run: it knows how far every stage is, and hands out work. It moves no data."""
