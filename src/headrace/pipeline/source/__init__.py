"""Sources, the units that they are split into, and the topics that hold the units."""
