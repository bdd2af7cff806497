"""Budgets per query and per passage: what a sweep found, oracles and what of them is luck, and choosing K_q and K_p.

Pure maths over tables on disk: nothing here loads a model. Import the leaf modules.
"""
