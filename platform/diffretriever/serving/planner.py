"""From the texts of a request to prepared queries: checks, each query's K_q and why, token ids with slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diffretriever.budgets.selectors import Selector
from diffretriever.collections.validation import RefusedError, checked_query
from diffretriever.encoders.prepared import PreparedText
from diffretriever.encoders.preparer import Preparer
from diffretriever.index.table import PassageIndex
from diffretriever.search.selecting import BudgetChooser
from diffretriever.serving.problems import InvalidError
from schemas.retriever import Bm25Retriever, MaskedRetriever, PromptedRetriever
from schemas.serve import AskedBudget, BudgetUsed, Texts
from schemas.serve_config import ServeLimits


@dataclass(frozen=True, slots=True)
class PlannedQuery:
    """A query ready to be encoded."""

    text: str
    budget: BudgetUsed
    prepared: PreparedText


class Planner:
    """Prepares queries for one retriever. A tokenizer is no thread's friend: use it from one thread at a time.

    Attributes:
        own_budget: the retriever's K_q; None where queries have no budget.
        selector: what chooses `adaptive` budgets; None where there is nothing to choose.
    """

    def __init__(self, index: PassageIndex, preparer: Preparer, selector: str, limits: ServeLimits) -> None:
        """`selector` names one as `open_selector` takes it.

        Raises:
            ValueError: the selector cannot be used for this index; see `BudgetChooser`.
        """
        retriever = index.manifest.retriever
        assert not isinstance(retriever, Bm25Retriever), "such an index is refused at the start"
        most = min(limits.max_budget, preparer.most_slots or limits.max_budget)
        self.limits = limits.model_copy(update={"max_budget": most})
        self._preparer = preparer
        self._method = retriever.method
        self.own_budget = retriever.max_vectors("query") if isinstance(retriever, PromptedRetriever) else None
        masked = isinstance(retriever, MaskedRetriever)
        self._chooser = BudgetChooser(selector, index, preparer) if masked else None
        self.selector: Selector | None = self._chooser.selector if self._chooser else None

    def plan(self, query: Texts, budget: AskedBudget) -> list[PlannedQuery]:
        """Check the texts of a request, choose each one's K_q, and prepare them.

        Raises:
            InvalidError: a text or the budget cannot be used, or is over a limit.
        """
        texts = self._checked(query)
        budgets = self._budgets(texts, budget)
        slots = [each.slots or self._preparer.default_slots("query") for each in budgets]
        prepared = self._preparer.prepare(texts, "query", slots)
        return [PlannedQuery(*each) for each in zip(texts, budgets, prepared, strict=True)]

    def _checked(self, query: Texts) -> list[str]:
        texts = [query] if isinstance(query, str) else query
        limits = self.limits
        if not 1 <= len(texts) <= limits.max_queries:
            fix = f"send between 1 and {limits.max_queries} queries in a request"
            raise InvalidError(f"there are {len(texts)} queries", fix, "query")
        for number, text in enumerate(texts):
            field = "query" if isinstance(query, str) else f"query.{number}"
            if len(text) > limits.max_query_chars:
                fix = f"shorten it to {limits.max_query_chars} characters"
                raise InvalidError(f"the query has {len(text)} characters", fix, field)
            try:
                checked_query("query", text)
            except RefusedError as refused:
                raise InvalidError(str(refused), "send a text that has words in it, as valid Unicode", field) from None
        return texts

    def _budgets(self, texts: Sequence[str], budget: AskedBudget) -> list[BudgetUsed]:
        if budget is None:
            return [BudgetUsed(slots=self.own_budget, reason="retriever")] * len(texts)
        if self.own_budget is None:
            raise InvalidError(f"the {self._method} method has no query budget", "leave budget out", "budget")
        if budget == "adaptive":
            return self._chosen(texts)
        if budget > self.limits.max_budget:
            raise InvalidError(f"{budget} slots are too many", f"ask for at most {self.limits.max_budget}", "budget")
        return [BudgetUsed(slots=budget, reason="asked")] * len(texts)

    def _chosen(self, texts: Sequence[str]) -> list[BudgetUsed]:
        if self._chooser is None:
            detail = f"the {self._method} method has no slots to choose the number of"
            raise InvalidError(detail, "give a number, or leave budget out", "budget")
        rule, allowed = self._chooser.selector.name, self._chooser.selector.budgets
        return [
            BudgetUsed(slots=choice.budget, reason="adaptive", rule=rule, allowed=allowed, features=choice.features)
            for choice in self._chooser.choose(texts)
        ]
