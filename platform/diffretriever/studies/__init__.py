"""Studies made with the library: the paper's tables and figures, budgets, pruning, topics of an index, its size.

Only jobs import this package, and it uses public modules alone.
"""
