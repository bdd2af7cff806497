"""The front door in Python: an index, a retriever and their answers, for programs and notebooks."""
