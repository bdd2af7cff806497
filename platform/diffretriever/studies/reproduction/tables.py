"""The paper's tables as YAML files, and the collections of their columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

import yaml

from diffretriever.collections import irds, open_collection
from diffretriever.collections.beir import FOLDERS
from diffretriever.core.files import cache_dir
from diffretriever.schemas.base import suggest
from diffretriever.schemas.locations import plain_location
from diffretriever.studies.reproduction.config import PublishedTable, ReproduceJob
from diffretriever.studies.reproduction.sizes import corpus_of

MINI = "mini"
"""The table that is ours: all methods on the embedded backbone."""

PAPER_TABLES = (
    "main-indomain",
    "main-beir7",
    "multistep-indomain",
    "multistep-beir7",
    "prompt-comparison",
    "compressed-storage",
    "beir7-modes",
    "dense-baselines",
    "index-storage",
)
"""In the paper's order."""

FIGURE_TABLES = ("decomposition",)
"""Figures whose bars are rows like those of a table."""

WITHOUT_ROWS = (
    "latency-quality", "overview", "prompts", "hyperparameters", "heat-maps-train", "heat-maps", "oracles",
    "query-features", "latency-scaling", "index-storage-figure", "heat-maps-indomain", "heat-maps-beir7",
)  # fmt: skip
"""What the paper has beside them, by the names that `--tables` takes: nothing of it is run."""

AVERAGE = "beir7-average"
"""The column of means over `BEIR7`."""

BEIR7 = ("nq", "hotpotqa", "scifact", "trec-covid", "fiqa", "arguana", "quora")
# BEIR's archive has DL19 as `test` and no DL20.
_MSMARCO_SPLITS = {"msmarco-dev": ("dev",), "dl19": ("dl19", "test"), "dl20": ("dl20",)}
_BEIR_SPLITS = ("test",)


def load_tables(names: Sequence[str]) -> list[PublishedTable]:
    """Return the tables of these names, all for none; exhibits without rows are left out."""
    known = (*PAPER_TABLES, *FIGURE_TABLES, *WITHOUT_ROWS, MINI)
    for name in names:
        if name not in known:
            raise ValueError(f"--tables: no table '{name}'.{suggest(name, known)}")
    return [load_table(name) for name in names or known if name not in WITHOUT_ROWS]


@cache
def load_table(name: str) -> PublishedTable:
    """Return one table as its file has it."""
    folder = files("diffretriever.studies.reproduction")
    file = folder / f"{MINI}.yaml" if name == MINI else folder / "published" / f"{name}.yaml"
    return PublishedTable.model_validate(yaml.safe_load(file.read_text("utf-8")))


@dataclass(frozen=True, slots=True)
class EvaluationSet:
    """Passages, and a split of queries over them."""

    source: str
    """What `open_collection` takes: an absolute path, or a public name."""
    name: str
    """Of the passages."""
    split: str
    state: str
    """Changes when the passages' file does."""


def find_set(name: str, job: ReproduceJob) -> EvaluationSet:
    """Return the evaluation set called `name`; a run downloads a public one."""
    source = _source(name, job)
    if job.dry_run and _must_be_fetched(source):
        raise ValueError(f"no collection {name} yet: a run downloads {source}")
    collection = open_collection(source)
    wanted = _MSMARCO_SPLITS.get(name, _BEIR_SPLITS)
    split = next((split for split in wanted if split in collection.splits()), None)
    if split is None:
        why = collection.missing_split(wanted[0])
        raise ValueError(f"no collection {name}: {source} has no split {' or '.join(wanted)}{why}")
    return EvaluationSet(source, collection.name, split, collection.source_state())


def check_names(job: ReproduceJob, used: set[str]) -> None:
    """Raise `ValueError` for a name in `--collections` that none of the evaluation sets `used` has."""
    known = used | {corpus_of(name) for name in used}
    for name in job.collections:
        if name not in known:
            raise ValueError(f"--collections: no table asked for uses '{name}'.{suggest(name, known)}")


def _source(name: str, job: ReproduceJob) -> str:
    names = dict.fromkeys((name, corpus_of(name)))
    for given in names:
        if given in job.collections:
            place = Path(plain_location(job.collections[given]))
            return str(place.absolute()) if place.exists() else job.collections[given]
    root = job.collections_root
    places = [] if root is None else [root / f"{folder}{end}" for folder in names for end in ("", ".zip")]
    for place in places:
        if place.exists():
            return str(place.absolute())
    corpus = corpus_of(name)
    raise ValueError(
        f"no collection {name}: give --collections {corpus}=PATH, or a folder {corpus} or its zip in the root"
    )


def _must_be_fetched(source: str) -> bool:
    if source.startswith(irds.PREFIX):
        return not irds.is_converted(source)
    if Path(source).exists() or source not in FOLDERS:
        return False
    archive = FOLDERS[source].partition("/")[0]
    return not (cache_dir() / "downloads" / f"{archive}.zip").is_file()
