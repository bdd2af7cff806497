"""The only Ray Data code: encode a collection into an index."""
