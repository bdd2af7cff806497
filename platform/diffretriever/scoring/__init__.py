"""How representations become scores and rankings: pure maths over arrays, without files or models.

Import the leaf modules: `maxsim` and `sparse` need torch, `topk` and `fusion` do not.
"""
