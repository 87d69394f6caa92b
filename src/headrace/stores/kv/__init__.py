"""Ordered keys and values with atomic writes, which every store keeps its data in."""
