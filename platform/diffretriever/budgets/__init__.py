"""Choosing a query's budget K_q before the query is encoded: cheap features, selectors that look at them, fitting one.

Pure maths; nothing here loads a model. Import the leaf modules.
"""
