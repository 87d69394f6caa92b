"""Queue backends: topics that the stages of a pipeline write to and pull from."""
