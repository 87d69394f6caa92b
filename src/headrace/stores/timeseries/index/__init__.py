"""Which series there are: their ids, and the labels that find them."""
