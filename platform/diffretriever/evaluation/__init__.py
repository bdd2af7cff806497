"""How good a run is: measures by ir_measures, intervals, and reports for people and programs.

Import the leaf modules; the package alone loads neither ir_measures nor matplotlib.
"""
