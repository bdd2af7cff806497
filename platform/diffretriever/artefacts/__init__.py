"""Files that are made of an index once, kept beside it wherever it lies, and used memory-mapped."""
