"""The search service without its server: budgets, batches, versions, explanations, limits and problems."""
