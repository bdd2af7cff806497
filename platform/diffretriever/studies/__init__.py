"""Studies made with the library: the paper's tables and figures, budgets, pruning, the size of an index.

Only jobs import this package, and it uses public modules alone.
"""
