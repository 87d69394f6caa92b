"""Rate limits that all workers of a run share: requests and tokens per minute, and Retry-After."""
