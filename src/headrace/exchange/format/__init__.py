"""The bytes and the keys of map outputs."""
