"""A vector store: the nearest of many vectors, among those whose metadata fit a filter."""
