"""A time-series store: samples by labels, in buckets of an hour, with an index of labels."""
