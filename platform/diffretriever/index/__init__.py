"""The passage index: a Lance table, its manifest, exactly-once writing."""
