"""The passage index: a Lance table with its manifest, derived files and exactly-once writing."""
