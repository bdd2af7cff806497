"""From a row of a table to the retriever that runs it, with the stand-ins that the job names."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diffretriever.presets import load_retriever, with_places
from diffretriever.reproduction.weights import find_weights
from schemas.base import suggest
from schemas.reproduce import PublishedRow, PublishedTable, ReproduceJob
from schemas.retriever import RETRIEVER_ADAPTER, Bm25Retriever, LibraryRetriever, NeuralRetriever, RetrieverConfig


@dataclass(frozen=True)
class Prepared:
    """A row's retriever, whose weights are here."""

    config: RetrieverConfig
    """Hub ids are pinned to the commits found."""
    weights: str
    """Changes when the weights do; empty for BM25."""
    stand_ins: dict[str, str]
    """Published source → folder that is loaded instead."""


def prepare(row: PublishedRow, job: ReproduceJob) -> Prepared:
    """Return what runs `row`.

    Raises:
        ValueError: nothing here runs it; the message is the reason that listing and report give.
    """
    if row.preset is None:
        raise ValueError("this job measures retrieval only: nothing to run")
    config = with_settings(load_retriever(row.preset), row.settings)
    if isinstance(config, Bm25Retriever):
        return Prepared(config, "", {})
    adapter = _adapter(row, row.preset, config, job)
    source = config.backbone.source
    stand_ins = {source: str(job.backbones[source].absolute())} if source in job.backbones else {}
    if isinstance(config, LibraryRetriever) and importlib.util.find_spec("sentence_transformers") is None:
        raise ValueError("needs the extra `models`: pip install 'diffretriever[models]'")
    pinned, weights = _pin(with_places(config, stand_ins.get(source), adapter), row.preset)
    return Prepared(pinned, weights, stand_ins)


def with_settings(config: RetrieverConfig, settings: Mapping[str, Any]) -> RetrieverConfig:
    """Return `config` with the fields in `settings`, nested ones included, replaced."""
    return RETRIEVER_ADAPTER.validate_python(_merged(config.model_dump(mode="json"), settings))


def check_overrides(job: ReproduceJob, tables: list[PublishedTable]) -> None:
    """Raise `ValueError` for a backbone or an adapter that the job gives and no row uses."""
    if not job.backbones and not job.adapters:
        return
    rows = [row for table in tables for row in table.rows if row.preset is not None]
    configs = {row.preset: load_retriever(row.preset) for row in rows if row.preset is not None}
    sources = {config.backbone.source for config in configs.values() if not isinstance(config, Bm25Retriever)}
    tuned = {row.preset for row in rows if row.preset and (row.needs_adapter or _has_adapter(configs[row.preset]))}
    for flag, given, known in (("--backbones", job.backbones, sources), ("--adapters", job.adapters, tuned)):
        for name in given:
            if name not in known:
                raise ValueError(f"{flag}: no row of the tables asked for uses '{name}'.{suggest(name, known)}")


def _adapter(row: PublishedRow, preset: str, config: NeuralRetriever, job: ReproduceJob) -> str | None:
    """Return the adapter to put in place of the preset's; zero-shot rows of the same preset get none."""
    if not row.needs_adapter and not _has_adapter(config):
        return None
    if preset in job.adapters:
        return str(job.adapters[preset])
    if row.needs_adapter:
        raise ValueError(f"needs an adapter: train it, then --adapters {preset}=FOLDER")
    return None


def _has_adapter(config: RetrieverConfig) -> bool:
    return not isinstance(config, Bm25Retriever) and config.backbone.adapter is not None


def _pin(config: NeuralRetriever, preset: str) -> tuple[NeuralRetriever, str]:
    place = config.backbone
    base = find_weights(place.source, place.revision, "--backbones override")
    pins, states = {"revision": base.commit}, [base.state]
    if place.adapter is not None:
        override = f"--adapters {preset}=FOLDER"
        adapter = find_weights(place.adapter, place.adapter_revision, override, adapter=True)
        pins["adapter_revision"] = adapter.commit
        states.append(adapter.state)
    return config.model_copy(update={"backbone": place.model_copy(update=pins)}), " ".join(states)


def _merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(values)
    for key, change in changes.items():
        merged[key] = _merged(merged[key], change) if isinstance(change, dict) else change
    return merged
