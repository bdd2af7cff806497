"""A plan as text: a line for each figure, a column for each budget."""

from __future__ import annotations

from collections.abc import Callable

from diffretriever.planning.storage import GIB
from schemas.plan import BudgetPlan, CapacityPlan


def page(plan: CapacityPlan) -> str:
    """Return the plan as an aligned table, under what it is for."""
    rows: list[tuple[str, Callable[[BudgetPlan], str]]] = [
        ("vectors a passage", lambda b: f"{b.vectors:.4g}"),
        ("impacts a passage", lambda b: f"{b.impacts:.4g}"),
    ]
    if plan.budgets[0].rate is not None:
        rows += [
            (f"encoding, passages/s ({_how(plan)})", lambda b: f"{b.rate:,.1f}"),
            ("encoding, hours of one device", lambda b: f"{b.hours:,.1f}"),
        ]
    rows += [(f"vectors as {name}, GiB", _layout(name)) for name in plan.budgets[0].layouts]
    rows += [
        ("index: table with fp16 vectors, GiB", lambda b: _gib(b.table_bytes)),
        ("index: codes and vectors beside it, GiB", lambda b: _gib(b.codes_bytes)),
        ("index: postings beside it, GiB", lambda b: _gib(b.postings_bytes)),
        ("index: all three, GiB", lambda b: _gib(b.stored_bytes)),
    ]
    if plan.budgets[0].price_per_month is not None:
        rows.append(("index: price of all three a month", lambda b: f"{b.price_per_month:,.2f}"))
    where = "one core, measured here" if plan.bandwidth_measured else "as given"
    rows += [
        ("exact scan of the codes: memory, GiB", lambda b: _gib(b.search_memory)),
        (f"exact scan of the codes: GB/s ({where})", lambda b: f"{b.scan_rate / 1e9:.1f}"),
        ("exact scan of the codes: seconds a query", lambda b: f"{b.seconds_per_query:,.3g}"),
    ]
    heading = (
        f"{plan.passages:,} passages of {plan.tokens:.0f} tokens ({plan.text_bytes:.0f} bytes), {plan.retriever}, "
        f"vectors of {plan.hidden_size:,} numbers"
    )
    lines = [("", *(b.budget for b in plan.budgets))]
    lines += [(label, *(cell(b) for b in plan.budgets)) for label, cell in rows]
    return "\n".join([heading, "", *_aligned(lines)])


def _how(plan: CapacityPlan) -> str:
    return f"measured here on {plan.measured_on} passages" if plan.measured_on else "as given"


def _layout(name: str) -> Callable[[BudgetPlan], str]:
    return lambda budget: _gib(budget.layouts[name])


def _gib(size: int) -> str:
    gib = size / GIB
    return f"{gib:,.2f}" if gib >= 1 else f"{gib:.4f}"


def _aligned(lines: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join([line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    ]
