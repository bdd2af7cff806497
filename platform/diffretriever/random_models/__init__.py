"""Checkpoints and adapters with random weights in the families' published formats: for tests and dry runs."""
