"""Chooses a query's budget K_q before encoding: cheap features, selectors, and fitting. Loads no model."""
