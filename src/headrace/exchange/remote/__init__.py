"""Map outputs that another machine reads over Flight."""
