"""What answers requests, without the server: choosing budgets, batching, versions, explanations, limits, problems."""
