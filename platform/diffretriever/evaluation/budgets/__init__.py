"""Budgets of sweeps on disk: measuring and choosing them, their analysis as a report, fitting selectors, pruning slots.

Import the leaf modules; the package alone loads no matplotlib.
"""
