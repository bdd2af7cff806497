"""Retrievers and indexes in other libraries' terms; each file needs the extra of its name."""
