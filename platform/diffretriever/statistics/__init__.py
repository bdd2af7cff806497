"""Statistics over queries: intervals, paired tests and rank correlations. Pure functions of numbers.

Import the leaf modules.
"""
