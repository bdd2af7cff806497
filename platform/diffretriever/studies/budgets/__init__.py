"""Analyses of budget sweeps as reports: grids, oracles, features, what selectors gain, and pruning of slots.

Import the leaf modules; the package alone loads no matplotlib.
"""
