"""The files of a budget sweep: values of every query with every budget, queries, indexes.

Legend: A query budgets, B passage budgets, F features, Q queries.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import yaml
from pyarrow import compute, feather, parquet

from diffretriever.budgets.features import (
    FEATURES,
    FirstSlots,
    QueryText,
    features_of,
)
from diffretriever.collections import Qrels, Query, open_collection
from diffretriever.core.files import files_in, is_file, read_bytes, read_model, read_text, understood, whole_file
from diffretriever.evaluation.formats.tables import listed
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.base import suggest
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.locations import StorePath
from diffretriever.schemas.sweep import OUTCOMES_SCHEMA, QUERIES_SCHEMA, SweepJob, SweepManifest, SweepMode
from diffretriever.search.selecting import document_frequencies
from diffretriever.vectors.representations import Representations

MANIFEST_FILE = "sweep.json"
OUTCOMES_FILE = "per_query.parquet"
QUERIES_FILE = "queries.parquet"
ENCODED_FOLDER = "encoded"
JOB_FILE = "sweep.yaml"
_AGAIN = "run the sweep again"
_SEED = 42


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """Values of one mode and one measure, float64 [A, B, Q], by ascending K_q, ascending K_p and query id."""

    queries: tuple[str, ...]
    query_budgets: tuple[int, ...]
    passage_budgets: tuple[int, ...]
    values_ABQ: np.ndarray

    def __post_init__(self) -> None:
        shape = (len(self.query_budgets), len(self.passage_budgets), len(self.queries))
        assert self.values_ABQ.shape == shape, f"values are {self.values_ABQ.shape}, the budgets and queries {shape}"

    @property
    def budgets(self) -> list[Budget]:
        """All cells, by K_q, then K_p."""
        return [Budget(k_q, k_p) for k_q in self.query_budgets for k_p in self.passage_budgets]

    @classmethod
    def read(cls, folder: Path | StorePath, split: str, mode: SweepMode, measure: str) -> Outcomes:
        """Read one mode and measure of a split; raise `ValueError` if the table is not a complete grid."""
        manifest = read_manifest(folder)
        for what, name, known in (
            ("split", split, manifest.splits),
            ("mode", mode, manifest.modes),
            ("measure", measure, manifest.measures),
        ):
            if name not in known:
                raise ValueError(f"the sweep {folder} has no {what} '{name}'.{suggest(name, known)}")
        path = folder / split / OUTCOMES_FILE
        wanted = (compute.field("mode") == mode) & (compute.field("measure") == measure)
        with understood(path, _AGAIN):
            table = parquet.read_table(pa.BufferReader(read_bytes(path)), schema=OUTCOMES_SCHEMA, filters=wanted)
        return _from_table(table, manifest, f"{path} ({mode}, {measure})")

    def at(self, budget: Budget) -> np.ndarray:
        """Return the values with `budget`, float64 [Q]."""
        a, b = self.place(budget)
        return self.values_ABQ[a, b]

    def place(self, budget: Budget) -> tuple[int, int]:
        """Return the indices of `budget` on the first two axes; raises `ValueError` where it was not swept."""
        if budget.query not in self.query_budgets or budget.passage not in self.passage_budgets:
            raise ValueError(
                f"{budget} was not swept: K_q is one of {listed(self.query_budgets)}, "
                f"K_p one of {listed(self.passage_budgets)}"
            )
        return self.query_budgets.index(budget.query), self.passage_budgets.index(budget.passage)

    def best(self) -> Budget:
        """Return the budget with the highest mean; of equals the one with fewer slots, then fewer query slots."""
        means = dict(zip(self.budgets, self.values_ABQ.mean(axis=2).flatten().tolist(), strict=True))
        return min(means, key=lambda budget: (-means[budget], budget.query + budget.passage, budget.query))


def read_manifest(folder: Path | StorePath) -> SweepManifest:
    """Read `sweep.json` of a sweep's folder."""
    path = folder / MANIFEST_FILE
    if not is_file(path):
        raise ValueError(f"no sweep at {folder}: it has no {MANIFEST_FILE}; jobs/sweep_budgets.py makes one")
    return read_model(path, SweepManifest, _AGAIN)


def read_settings(folder: Path | StorePath) -> dict[str, Any]:
    """Read the settings of a sweep that later jobs need from its `sweep.yaml`."""
    path = folder / JOB_FILE
    with understood(path, _AGAIN):
        settings = yaml.safe_load(read_text(path))
        return {name: settings[name] for name in ("collection", "exclude_self", "max_queries")}


def write_outcomes(
    folder: Path | StorePath, split: str, cells: Mapping[tuple[SweepMode, Budget], Mapping[str, Mapping[str, float]]]
) -> None:
    """Write `<split>/per_query.parquet` of the sweep in `folder`, atomically; equal values give equal bytes."""
    parts = [
        pd.DataFrame({"query": list(values), "value": list(values.values())}).assign(
            mode=mode, query_budget=budget.query, passage_budget=budget.passage, measure=measure
        )
        for (mode, budget), measures in cells.items()
        for measure, values in measures.items()
    ]
    with whole_file(folder / split / OUTCOMES_FILE) as stream:
        pd.concat(parts).to_parquet(stream, schema=OUTCOMES_SCHEMA, index=False)


def _from_table(table: pa.Table, manifest: SweepManifest, shown: str) -> Outcomes:
    frame = table.to_pandas()
    for column, budgets in (("query_budget", manifest.query_budgets), ("passage_budget", manifest.passage_budgets)):
        unknown = set(frame[column]) - set(budgets)
        if unknown:
            raise ValueError(
                f"{shown}: {column} {min(unknown)} is not in {MANIFEST_FILE}: one of the two is of another sweep"
            )
    queries = frame["query"].unique().tolist()
    cells = [manifest.query_budgets, manifest.passage_budgets, queries]
    values = frame.set_index(["query_budget", "passage_budget", "query"])["value"]
    shape = tuple(map(len, cells))
    if len(frame) != math.prod(shape) or not values.index.is_unique or not np.isfinite(values).all() or not queries:
        raise ValueError(f"{shown} is no complete grid of finite values: run the sweep again to the end")
    values_ABQ = values.reindex(pd.MultiIndex.from_product(cells)).to_numpy().reshape(shape)
    return Outcomes(tuple(queries), manifest.query_budgets, manifest.passage_budgets, values_ABQ)


def drawn_queries(job: SweepJob, split: str, queries: list[Query]) -> list[Query]:
    """Return the queries of a split that the job sweeps, in their order: all, or `max_queries` drawn."""
    if job.max_queries is None or len(queries) <= job.max_queries:
        return queries
    generator = np.random.default_rng([_SEED, *split.encode()])
    drawn = generator.choice(len(queries), job.max_queries, replace=False)
    return [queries[number] for number in sorted(drawn.tolist())]


def read_queries(folder: Path | StorePath, split: str) -> dict[str, QueryText]:
    """Read texts and subwords of a split's queries by id, in the order of `queries.parquet`."""
    path = folder / split / QUERIES_FILE
    if not is_file(path):
        raise ValueError(f"{path} is not there: run the sweep again, it keeps the queries of every split")
    with understood(path, _AGAIN):
        rows = parquet.read_table(pa.BufferReader(read_bytes(path)), schema=QUERIES_SCHEMA).to_pylist()
    return {row["query"]: QueryText(row["text"], row["token_ids"]) for row in rows}


def write_queries(folder: Path | StorePath, split: str, queries: Mapping[str, QueryText]) -> None:
    """Write `<split>/queries.parquet` of the sweep in `folder`, atomically."""
    rows = [{"query": name, "text": query.text, "token_ids": query.token_ids} for name, query in queries.items()]
    with whole_file(folder / split / QUERIES_FILE) as stream:
        parquet.write_table(pa.Table.from_pylist(rows, schema=QUERIES_SCHEMA), stream)


def encoded_files(folder: Path | StorePath, query_budget: int) -> list[Path | StorePath]:
    """Return the files with queries encoded by this K_q; an interrupted sweep can leave several."""
    names = (info.base_name for info in files_in(folder))
    return [folder / name for name in names if name.startswith(f"q{query_budget}-") and name.endswith(".arrow")]


@dataclass(frozen=True, slots=True)
class SweptSplit:
    """One split of the sweep in `folder`."""

    folder: Path | StorePath
    split: str
    manifest: SweepManifest

    @property
    def name(self) -> str:
        """Such as `scifact/test`."""
        return f"{self.manifest.collection}/{self.split}"

    def qrels(self, collection: str | None = None) -> Qrels:
        """Return the judgements of the swept queries, from `collection` or the one that was swept."""
        settings = read_settings(self.folder)
        source = collection or settings["collection"]
        try:
            qrels = open_collection(source).qrels(self.split)
        except ValueError as error:
            raise ValueError(
                f"{self.folder} was swept on {source}, which cannot be opened from here: {error}"
            ) from error
        if settings["max_queries"] is None:
            return qrels
        swept = read_queries(self.folder, self.split)
        return {query: judged for query, judged in qrels.items() if query in swept}

    def index_folder(self, passage_budget: int) -> Path | StorePath:
        """Return the folder of the index of one K_p."""
        return self.folder / "indexes" / f"p{passage_budget}"

    def has_encoded(self, query_budget: int) -> bool:
        """Return whether the sweep still has the queries encoded with this K_q."""
        return len(self._encoded_files(query_budget)) == 1

    def encoded(self, query_budget: int) -> Representations:
        """Read the queries as this K_q encoded them, in the order of `queries.parquet`."""
        files = self._encoded_files(query_budget)
        if len(files) != 1:
            place = self.folder / self.split / ENCODED_FOLDER
            raise ValueError(f"{place} has no queries of K_q = {query_budget}: run the sweep again, it keeps them")
        with understood(files[0], _AGAIN):
            queries = Representations.from_arrow(feather.read_table(pa.BufferReader(read_bytes(files[0]))))
        if len(queries) != len(read_queries(self.folder, self.split)):
            raise ValueError(f"{files[0]} does not match {QUERIES_FILE}: run the sweep again")
        return queries

    def _encoded_files(self, query_budget: int) -> list[Path | StorePath]:
        return encoded_files(self.folder / self.split / ENCODED_FOLDER, query_budget)

    def features(self, queries: Sequence[str], names: Sequence[str]) -> np.ndarray:
        """Return features of the queries with these ids, float64 [Q, F]; count document frequencies if needed."""
        lacking = next((name for name in names if FEATURES[name].needs_frequencies), None)
        place = self.some_index()
        if lacking is not None and place is None:
            raise ValueError(f"the feature '{lacking}' needs document frequencies, from an index that {self.name} has")
        frequencies = document_frequencies(PassageIndex.open(place)) if lacking is not None and place else None
        kept = read_queries(self.folder, self.split)
        missing = next((query for query in queries if query not in kept), None)
        if missing is not None:
            raise ValueError(f"the queries kept in {self.folder / self.split} lack '{missing}': run the sweep again")
        most = max((FEATURES[name].needs_slots for name in names), default=0)
        slots = dict(zip(kept, self._first_slots(most), strict=True)) if most else {}
        rows = [
            features_of(replace(kept[query], frequencies=frequencies, slots=slots.get(query, FirstSlots())))
            for query in queries
        ]
        return np.array([[row[name] for name in names] for row in rows], dtype=np.float64)

    def some_index(self) -> str | None:
        """Return the URI of an index of the sweep, if any is left: all have the same texts."""
        places = (str(self.index_folder(budget)) for budget in self.manifest.passage_budgets)
        return next(filter(PassageIndex.exists, places), None)

    def _first_slots(self, most: int) -> list[FirstSlots]:
        one = self.encoded(1)
        impacts = _impacts(one)
        confidences = [float(own.max(initial=0.0)) for own in impacts]
        if most == 1:
            return [FirstSlots(confidence) for confidence in confidences]
        two = self.encoded(2)
        # A text may have fewer slots than it was given, where an encoder cuts them.
        ends = (two.offsets[:-1], two.offsets[1:] - 1)
        agreements = np.einsum("qh,qh->q", *(two.vectors_MH[place].astype(np.float64) for place in ends))
        sums = [(float(first.sum()), float(both.sum())) for first, both in zip(impacts, _impacts(two), strict=True)]
        added = [both / first - 1 if first > 0 else 0.0 for first, both in sums]
        return [FirstSlots(*each) for each in zip(confidences, map(float, agreements), added, strict=True)]


def _impacts(encoded: Representations) -> list[np.ndarray]:
    return [encoded.impact_weights[first:end] for first, end in pairwise(encoded.impact_offsets.tolist())]


def open_splits(paths: Sequence[Path | StorePath]) -> list[SweptSplit]:
    """Open split folders, such as sweeps/scifact/test; raise `ValueError` for different retrievers or budgets."""
    splits = [_open(path) for path in paths]
    first = splits[0].manifest
    names = [split.name for split in splits]
    for path, split in zip(paths, splits, strict=True):
        manifest = split.manifest
        if manifest.fingerprint != first.fingerprint:
            raise ValueError(
                f"{path} is of encoder {manifest.fingerprint} ({manifest.retriever}), {paths[0]} of "
                f"{first.fingerprint} ({first.retriever}): give sweeps of one retriever"
            )
        if (manifest.query_budgets, manifest.passage_budgets) != (first.query_budgets, first.passage_budgets):
            raise ValueError(f"{path} and {paths[0]} were swept over different budgets: sweep both over the same ones")
        if names.count(split.name) > 1:
            raise ValueError(f"{split.name} is given twice, the second time as {path}: leave one out")
    return splits


def _open(path: Path | StorePath) -> SweptSplit:
    manifest = read_manifest(path.parent)
    if path.name not in manifest.splits:
        raise ValueError(
            f"{path} is no split of the sweep {path.parent}, which has {', '.join(manifest.splits)}: "
            f"give for example {path.parent / manifest.splits[0]}"
        )
    return SweptSplit(path.parent, path.name, manifest)


def available_features(splits: Sequence[SweptSplit]) -> tuple[str, ...]:
    """Return the features that can be computed for all splits, in the order of the registry."""
    has_indexes = all(split.some_index() is not None for split in splits)
    most_slots = next((k for k in (0, 1) if not all(split.has_encoded(k + 1) for split in splits)), 2)
    return tuple(
        name
        for name, feature in FEATURES.items()
        if (has_indexes or not feature.needs_frequencies) and feature.needs_slots <= most_slots
    )
