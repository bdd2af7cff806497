"""Sweeps over budgets and reports on them: grids, oracles, features, gains of selectors, and pruning of slots.

Import the leaf modules; the package alone loads no matplotlib.
"""
