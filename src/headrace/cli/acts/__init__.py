"""The acts of `headrace demo`: each runs something, kills a part of it, and counts the wrongs."""
