"""The conditions of a system's ranking: passages, settings and costs; and warnings about them.

Differences between systems can come from the conditions instead of the retrievers, so reports begin with them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from time import perf_counter
from typing import Any

import numpy as np
from pydantic import ValidationError

from diffretriever.collections import Collection, Passage, Qrels
from diffretriever.collections.beir import PUBLISHED_PASSAGES
from diffretriever.collections.chunks import first_chunk
from diffretriever.core.files import exists, read_text
from diffretriever.encoders.preparer import join_title
from diffretriever.evaluation.measures import relevant_in
from diffretriever.index.collection_records import unfinished_collections
from diffretriever.index.history import column_bytes
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.evaluate import Conditions, Coverage, EvaluateJob, EvaluationReport, Overlap
from diffretriever.schemas.locations import StorePath
from diffretriever.schemas.mode import Mode, lists_of
from diffretriever.schemas.retriever import RetrieverConfig, is_neural
from diffretriever.search.bm25 import bm25_folder
from diffretriever.search.searcher import Searcher

_TIMED = 20
"""Queries that are timed."""
_SAMPLED = 1000
"""Passages that are tokenised to count the truncated ones."""
_COLUMNS = {"dense": ("reps", "codes"), "sparse": ("impact_ids", "impact_weights")}
_VARIED = ("retriever", "judged@10", "relevant found", "K_q", "K_p", "bytes a passage", "ms a query")
"""Rows that a comparison varies on purpose, or measures."""
_UNKNOWN, _NONE = "?", "none"


def coverage_of(index: PassageIndex, collection: Collection, qrels: Qrels) -> Coverage:
    """Return how many of a collection's passages are in an index, whole or in chunks; if large, by count only."""
    relevant, count = relevant_in(qrels), collection.count()
    if count is None:
        ids = list(dict.fromkeys(record.id for record in collection.records() if isinstance(record, Passage)))
        count, indexed = len(ids), _count_indexed(index, ids)
    else:
        indexed = min(len(index), count)
    return Coverage(
        collection=collection.name,
        indexed=indexed,
        passages=count,
        unfinished=collection.name in unfinished_collections(index.uri),
        relevant_indexed=_count_indexed(index, relevant),
        relevant=len(relevant),
    )


def _count_indexed(index: PassageIndex, ids: Sequence[str]) -> int:
    numbers_of = index.order.passages.numbers_of
    is_indexed = (numbers_of(ids) >= 0) | (numbers_of([first_chunk(passage_id) for passage_id in ids]) >= 0)
    return int(is_indexed.sum())


def conditions_of(
    searcher: Searcher, mode: Mode, job: EvaluateJob, budgets: Sequence[int] | None, **known: Any
) -> Conditions:
    """Return the conditions of one mode of an index. `budgets` are the K_q of the queries; `known` are other fields."""
    config = searcher.index.manifest.retriever
    text = getattr(config, "text", None)
    return Conditions(
        retriever=searcher.index.manifest.title,
        excludes_self=job.drops_self,
        filter=job.filter,
        documents=job.documents,
        query_tokens=None if text is None else text.max_query_tokens,
        passage_tokens=None if text is None else text.max_passage_tokens,
        prompt=_prompt(config),
        language=config.language,
        title_join=getattr(config if text is None else text, "title_join", None),
        precision=config.backbone.dtype if is_neural(config) else None,
        query_vectors=mean(budgets) if budgets else config.max_vectors("query") or None,
        passage_vectors=config.max_vectors("passage") or None,
        bytes_per_passage=_bytes_per_passage(searcher.index, mode),
        **known,
    )


def conditions_of_run(path: Path | StorePath, overlap: Overlap) -> Conditions:
    """Return the conditions of a run, from the `metrics.json` that `evaluate.py` wrote to the same folder, if any."""
    report = path.parent / "metrics.json"
    if exists(report):
        try:
            conditions = EvaluationReport.model_validate_json(read_text(report)).conditions
        except ValidationError:
            conditions = {}
        if (evaluated := conditions.get(path.name.removesuffix(".gz").removesuffix(".trec"))) is not None:
            return evaluated.model_copy(update={"overlap": overlap})
    return Conditions(overlap=overlap)


def truncation_of(searcher: Searcher) -> dict[str, float]:
    """Return the shares of cut passages and lost tokens, as fields of `Conditions`; {} for BM25, which reads all."""
    index, preparer = searcher.index, searcher.preparer
    if preparer is None or not len(index):
        return {}
    sampled = index.take(np.unique(np.linspace(0, len(index) - 1, _SAMPLED).astype(np.int64)), ["title", "text"])
    titles, texts = sampled.column("title").to_pylist(), sampled.column("text").to_pylist()
    joined = [join_title(title, text, preparer.text) for title, text in zip(titles, texts, strict=True)]
    tokens_P = np.array(preparer.vocabulary.count_tokens(joined))
    (empty,) = preparer.prepare_passages([""], [""])
    read_P = np.array([text.n_tokens - empty.n_tokens for text in preparer.prepare_passages(titles, texts)])
    lost_P = np.maximum(tokens_P - read_P, 0)
    return {
        "cut_passages": float((lost_P > 0).mean()),
        "lost_tokens": float(lost_P.sum() / max(1, tokens_P.sum())),
    }


def milliseconds_of(
    searcher: Searcher, mode: Mode, texts: Sequence[str], budgets: Sequence[int] | None, **options: Any
) -> float | None:
    """Return the median time in milliseconds of up to 20 queries that are searched one at a time."""
    times = []
    for number, text in enumerate(texts[: _TIMED + 1]):
        started = perf_counter()
        searcher.search([text], modes=[mode], budgets=[budgets[number]] if budgets else None, **options)
        times.append(1000 * (perf_counter() - started))
    # The first search of a mode can be slower, because it opens files.
    return median(times[1:] or times) if times else None


def warnings_of(conditions: Mapping[str, Conditions], queries: int) -> list[str]:
    """Return the reasons to doubt the measures of systems, by name, over this number of queries."""
    names_by_coverage = defaultdict[Coverage, list[str]](list)
    for name, one in conditions.items():
        if one.coverage is not None:
            names_by_coverage[one.coverage].append(name)
    warnings = [text for coverage, names in names_by_coverage.items() for text in _coverage_warnings(names, coverage)]
    warnings += [text for name, one in conditions.items() for text in _overlap_warnings(name, one.overlap, queries)]
    return list(dict.fromkeys(warnings))


def _coverage_warnings(names: Sequence[str], coverage: Coverage) -> list[str]:
    warnings = []
    if coverage.unfinished:
        warnings.append(
            f"{', '.join(names)}: the encode job of {coverage.collection} has not finished: run it again to resume"
        )
    if coverage.indexed < coverage.passages:
        warnings.append(f"{coverage_text(names, coverage)}: encode the others, or measures mislead")
    published = PUBLISHED_PASSAGES.get(coverage.collection.lower())
    if published not in {None, coverage.passages}:
        warnings.append(
            f"{coverage.collection} has {coverage.passages:,} passages here, and {published:,} as published: do not "
            "compare its measures with published ones"
        )
    return warnings


def _overlap_warnings(name: str, overlap: Overlap, queries: int) -> list[str]:
    if not overlap.queries:
        return [f"{name} has passages for none of the {queries:,} judged queries: is it of the same split?"]
    warnings = []
    if overlap.queries < queries:
        warnings.append(
            f"{name} has passages for {overlap.queries:,} of {queries:,} judged queries: the others count as 0"
        )
    if not overlap.relevant:
        warnings.append(f"{name} finds no passage that is judged relevant: is it of the same collection?")
    if 2 * overlap.own_first > queries:
        warnings.append(
            f"{name} ranks the query's own passage first for {overlap.own_first:,} of {queries:,} queries: "
            "--exclude-self leaves it out"
        )
    return warnings


def coverage_text(names: Sequence[str], coverage: Coverage) -> str:
    """Return a sentence on the coverage of systems, without full stop."""
    verb = "contains" if len(names) == 1 else "contain"
    counts = f"{coverage.indexed:,} of the {coverage.passages:,} passages of {coverage.collection}"
    return f"{', '.join(names)} {verb} {counts}"


def conditions_table(conditions: Mapping[str, Conditions]) -> dict[str, list[str]]:
    """Return condition → its text for each system, differing ones first; without those that all systems lack."""
    columns = [_texts(one) for one in conditions.values()]
    names = [name for name in columns[0] if {column[name] for column in columns} - {_UNKNOWN, _NONE}] if columns else []
    rows = {name: [column[name] for column in columns] for name in names}
    return dict(sorted(rows.items(), key=lambda row: len({*row[1]}) == 1))


def differing_conditions(conditions: Mapping[str, Conditions]) -> list[str]:
    """Return the names of the conditions that differ between systems, without results and costs."""
    rows = conditions_table(conditions)
    return [name for name, texts in rows.items() if len({*texts} - {_UNKNOWN, _NONE}) > 1 and name not in _VARIED]


def _texts(conditions: Conditions) -> dict[str, str]:
    coverage, overlap = conditions.coverage, conditions.overlap
    lacking = _UNKNOWN if conditions.retriever is None else _NONE
    values: dict[str, object] = {
        "retriever": conditions.retriever,
        "passages": coverage and f"{coverage.indexed:,} of {coverage.passages:,}",
        "relevant passages": coverage and f"{coverage.relevant_indexed:,} of {coverage.relevant:,}",
        "own passage left out": {None: None, True: "yes", False: "no"}[conditions.excludes_self],
        "filter": conditions.filter,
        "documents": conditions.documents,
        "query tokens": conditions.query_tokens,
        "passage tokens": conditions.passage_tokens,
        "passages cut": _percent(conditions.cut_passages),
        "tokens lost": _percent(conditions.lost_tokens),
        "prompt": conditions.prompt,
        "language": conditions.language,
        "title": conditions.title_join,
        "precision": conditions.precision,
        "queries with passages": overlap.queries,
        "judged@10": f"{overlap.judged:.1%}",
        "relevant found": overlap.relevant,
        "K_q": conditions.query_vectors,
        "K_p": conditions.passage_vectors,
        "bytes a passage": conditions.bytes_per_passage,
        "ms a query": conditions.milliseconds,
    }
    return {name: lacking if value is None else _text(value) for name, value in values.items()}


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.1%}"


def _text(value: object) -> str:
    if isinstance(value, float) and value < 100 and value != int(value):
        return f"{value:.1f}"
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)


def _prompt(config: RetrieverConfig) -> str | None:
    prompt = getattr(config, "prompt", None)
    if prompt is not None:
        return f"{prompt.variant}, colon" if prompt.colon else str(prompt.variant)
    fields = ("query_prefix", "passage_prefix", "query_prompt", "passage_prompt")
    texts = [f"'{text}'" for name in fields if (text := getattr(config, name, None))]
    return ", ".join(texts) or None


def _bytes_per_passage(index: PassageIndex, mode: Mode) -> float | None:
    """Divide by all rows of the data files, deleted ones included, as `column_bytes` does."""
    if not len(index):
        return None
    columns, total = column_bytes(index), 0
    rows = sum(fragment.physical_rows for fragment in index.fragments())
    for name in lists_of(mode) if is_neural(index.manifest.retriever) else ("bm25",):
        if name == "bm25":
            # Removed passages have no postings.
            total += (bm25_folder(index).size() or 0) * rows // len(index)
        else:
            total += sum(columns.get(column, 0) for column in _COLUMNS[name])
    return total / rows
