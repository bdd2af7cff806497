"""How representations become scores and rankings: pure maths over arrays, without files or models.

Import the modules themselves: `topk` and `fusion` do not need torch.
"""
