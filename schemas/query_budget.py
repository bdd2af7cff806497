"""What the jobs that encode queries can be told of K_q."""

from __future__ import annotations

from typing import Self

from pydantic import PositiveInt, model_validator

from schemas.settings import JobConfig


class QueryBudgetOptions(JobConfig):
    """How many slots queries get."""

    query_budget: PositiveInt | None = None
    """K_q of all queries; default: the retriever's own."""
    selector: str | None = None
    """What chooses each query's K_q from its text: the file that fit_selector.py wrote, `rule`, or `fixed:4`."""

    @model_validator(mode="after")
    def _one_k(self) -> Self:
        if self.query_budget is not None and self.selector is not None:
            raise ValueError("give --query-budget or --selector, not both")
        return self
