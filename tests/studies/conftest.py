"""The encoder and the index of tests/search."""

from tests.search.conftest import encoder, index

__all__ = ["encoder", "index"]
