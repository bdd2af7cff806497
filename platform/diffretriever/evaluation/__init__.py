"""Evaluates runs: measures by ir_measures, intervals, and reports. Import the leaf modules."""
