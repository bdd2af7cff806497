"""Compiled inner loops (numba): pure maths on arrays, one file a family."""
