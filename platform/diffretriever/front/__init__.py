"""The Python API: indexes, retrievers and search results, for programs and notebooks."""
