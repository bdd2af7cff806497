"""Studies made with the library, for jobs: the paper's tables and figures, budgets, pruning, topics, capacity plans."""
