"""What other software and the disk reach with the same work."""
