"""Files of every kind that jobs read, damaged in every way: what a user sees is a sentence that names the file.

A new kind is a line of `KINDS`; `test_every_reader_is_tried_here` finds the module that reads it. Of the files beside a
table, and of the table itself, tests/index and tests/artefacts try all damages.
"""

from __future__ import annotations

import ast
import gzip
import io
import json
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
import torch
import yaml
from pyarrow import parquet
from safetensors.torch import save_file

from diffretriever.backbones.adapter_files import AdapterFiles
from diffretriever.backbones.checkpoint import Checkpoint, shards_of
from diffretriever.backbones.loader import load_vocabulary
from diffretriever.backbones.slot_layers import SLOTS_FILE
from diffretriever.budgets.selectors import load_artefact
from diffretriever.codecs import load_codec, train_codec
from diffretriever.collections import Run, open_collection, read_run, scan, write_run
from diffretriever.collections.base import read_queries
from diffretriever.collections.documents import as_collection
from diffretriever.collections.quarantine import refuse_other_files
from diffretriever.collections.trec import read_qrels
from diffretriever.encoders.library_files import _read_modules
from diffretriever.encoders.trained_for import _check_manifest
from diffretriever.evaluation.report import write_evaluation
from diffretriever.evaluation.sweeps import Outcomes, SweptSplit, read_manifest
from diffretriever.evaluation.sweeps import read_queries as read_swept_queries
from diffretriever.index.collection_places import refuse_other_places
from diffretriever.ledger import Ledger
from diffretriever.pipelines.mining import _finished
from diffretriever.pipelines.sweep import _refuse_another
from diffretriever.presets import load_retriever, read_selection
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.codec import CodecConfig
from diffretriever.schemas.index import CollectionPlaces
from diffretriever.schemas.search import SearchJob
from diffretriever.schemas.selector import FittedFeature, LearnedSelectorArtefact
from diffretriever.schemas.sweep import BudgetSelection, SweepJob
from diffretriever.schemas.training import MANIFEST_FILE, Recipe, TrainingManifest
from diffretriever.schemas.training_data import MinedNegatives, MineNegativesJob, PrepareTrainingJob
from diffretriever.studies.reproduction.exhibits.analyses import read_analysis
from diffretriever.studies.reproduction.exhibits.base import read_latencies
from diffretriever.studies.reproduction.exhibits.query_features import _values
from diffretriever.studies.reproduction.report import read_results
from diffretriever.testing.adapters import write_random_adapter
from diffretriever.testing.checkpoints import write_random_checkpoint
from diffretriever.training.adapters import check_trained
from diffretriever.training.data.sources import open_source
from diffretriever.training.data.training_set import EXAMPLES_FILE, PASSAGES_FILE, TrainingSet
from diffretriever.training.engine import PlainEngine
from diffretriever.training.gather import Workers
from diffretriever.training.run_folder import RunFolder
from tests.evaluation.test_evaluation_report import EVALUATION, RESULTS
from tests.studies.budgets.made_up import make_sweep
from tests.studies.budgets.made_up_vectors import add_vectors
from tests.training.example_cases import examples, jsonl, prepared, tevatron

EXAMPLES = examples(6)


class Kind(NamedTuple):
    """A kind of file."""

    write: Callable[[Path], Path]
    """Writes one into an empty folder, whole."""
    read: Callable[[Path], object]
    """Does what jobs do with it."""
    is_text: bool = True
    """Whether a part of it may be a whole file, too: lines of a collection."""


def _text(name: str, text: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).write_text(text, "utf-8")
        return folder / name

    return write


def _zipped(name: str, text: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(gzip.compress(text.encode()))
        return folder / name

    return write


def _selection(folder: Path) -> Path:
    made = BudgetSelection(
        budget=Budget(2, 8),
        mode="hybrid",
        measure="nDCG@10",
        split="train",
        value=0.5,
        grid={Budget(2, 8): 0.5},
        queries=7,
        collection="scifact",
        retriever="masked minilm",
        backbone="minilm",
        adapter=None,
        fingerprint="f00d",
        command="python jobs/sweep_budgets.py",
    )
    return _text("selection.json", made.model_dump_json())(folder)


def _selector(folder: Path) -> Path:
    made = LearnedSelectorArtefact(
        fingerprint="f00d",
        retriever="masked minilm",
        collections=("c/train",),
        mode="dense",
        measure="nDCG@10",
        passage_budget=4,
        queries=10,
        created="2026-01-01T00:00:00+00:00",
        command="made by hand",
        cost=0,
        penalty=1,
        budgets=(1, 3),
        features=(FittedFeature(name="length", low=0, high=100, centre=12.5, scale=1),),
        intercepts=(0.5, 0.5),
        coefficients=((-1.0,), (1.0,)),
    )
    return _text("selector.json", made.model_dump_json())(folder)


def _codec(folder: Path) -> Path:
    vectors = np.random.default_rng(0).normal(size=(64, 16)).astype(np.float16)
    train_codec(CodecConfig.parse("residual2"), vectors, 64).save(folder / "codec.safetensors")
    return folder / "codec.safetensors"


def _entry(folder: Path) -> Path:
    Ledger(folder).put_json("entry", {"rows": 3})
    return folder / "entry"


def _identity(folder: Path) -> Path:
    Ledger(folder, {"job": 1})
    return folder / "identity"


def _table_entry(folder: Path) -> Path:
    Ledger(folder).put_table("entry.arrow", pa.table({"numbers": np.arange(100)}))
    return folder / "entry.arrow"


def _run(folder: Path) -> Path:
    write_run(folder / "dense.trec", [Run.of({"q1": {"d1": 1.5, "d2": 0.5}, "q2": {"d1": 1.0}})], "dense")
    return folder / "dense.trec"


def _sweep(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        swept = make_sweep(folder, "swept", n=5)
        (swept / "sweep.yaml").write_text(
            yaml.safe_dump({"collection": "c", "top_k": 10, "exclude_self": False, "max_queries": None})
        )
        if "encoded" in name:
            add_vectors(swept, "test", 5)
        return swept / name

    return write


def _split_of(file: Path) -> SweptSplit:
    swept = next(each for each in file.parents if each.name == "swept")
    return SweptSplit(swept, "test", read_manifest(swept))


def _read_sweep_job(file: Path) -> None:
    assert _split_of(file).excludes_self in (True, False)
    job = SweepJob(collection="c", output=file.parent, retriever="diffretriever-minilm", top_k=10, measures=["nDCG@10"])
    _refuse_another(job, read_manifest(file.parent).model_copy(update={"collection": "swept"}))


def _report(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        write_evaluation(folder, EVALUATION, RESULTS)
        return folder / name

    return write


def _analysis(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        report = Path(__file__).resolve().parents[1] / "docs" / "budgets" / "report.json"
        (folder / "report.json").write_bytes(report.read_bytes())
        parquet.write_table(pa.table({"mode": ["dense"] * 9, "length": [3.0] * 9}), folder / "per_query.parquet")
        return folder / name

    return write


def _mined(folder: Path) -> Path:
    made = MinedNegatives(identity="i", index="i", version=1, fingerprint="f", retriever="r", settings={})
    (folder / "mined.jsonl").touch()
    return _text("mined.jsonl.json", made.model_dump_json())(folder)


def _mine_again(file: Path) -> None:
    output = file.with_name("mined.jsonl")
    _finished(MineNegativesJob(source="s", index="i", output=output), "i")


def _training_set(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        source = _text("train.jsonl", jsonl(map(tevatron, EXAMPLES)))(folder)
        prepared(PrepareTrainingJob(source=(str(source),), output=folder / "set"))
        return folder / "set" / name

    return write


def _read_training_set(file: Path) -> object:
    found = TrainingSet.open(file.parent)
    return [found.example(row) for row in range(len(found))]


def _parquet_source(folder: Path) -> Path:
    parquet.write_table(pa.Table.from_pylist([tevatron(each) for each in EXAMPLES]), folder / "train.parquet")
    return folder / "train.parquet"


def _read_source(file: Path) -> object:
    return list(open_source(str(file), "train").records())


def _checkpoint(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        return write_random_checkpoint("dream", folder, hidden_size=32) / name

    return write


def _adapter(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        write_random_checkpoint("dream", folder / "model", hidden_size=32)
        adapter = write_random_adapter(folder / "model", folder / "adapter")
        save_file({"slots": torch.ones(4, 32)}, adapter / SLOTS_FILE)
        (adapter / MANIFEST_FILE).write_text(
            json.dumps({"retriever": load_retriever("diffretriever-minilm").model_dump(mode="json")})
        )
        return adapter / name

    return write


def _engine() -> PlainEngine:
    return PlainEngine({"a": torch.nn.Parameter(torch.zeros(3))}, Recipe(), Workers(0, 1))


def _state(folder: Path) -> Path:
    _engine().save(folder)
    return next(folder.iterdir())


def _manifest_of_a_training(folder: Path) -> Path:
    made = TrainingManifest(
        retriever=load_retriever("diffretriever-minilm"),
        weights="w",
        data="d",
        examples=8,
        recipe=Recipe(),
        total_steps=1,
        workers=1,
    )
    return _text(MANIFEST_FILE, made.model_dump_json())(folder)


def _begin_again(file: Path) -> object:
    return RunFolder(file.parent)._manifest(file.parent)


def _read_job(file: Path) -> object:
    return SearchJob._read_yaml(["--config", str(file)])


def _trained_for(file: Path) -> None:
    _check_manifest(load_retriever("diffretriever-minilm"), file)  # type: ignore[arg-type] # it has a backbone


def _scan(file: Path) -> object:
    collection = open_collection(str(file.parent))
    return scan(collection, "error", None).n_records


def _scan_file(file: Path) -> object:
    return scan(open_collection(str(file)), "error", None).n_records


def _table_file(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        table = pa.table({"id": [f"d{i}" for i in range(9)], "text": [f"text {i}" for i in range(9)]})
        if name.endswith(".parquet"):
            parquet.write_table(table, folder / name)
        else:
            with pa.ipc.new_file(str(folder / name), table.schema) as writer:
                writer.write_table(table)
        return folder / name

    return write


LINES = "".join(f'{{"_id": "d{i}", "title": "", "text": "text {i}"}}\n' for i in range(9))
BAD = '{"collection": "c", "file": "f", "line": 1, "reason": "r", "raw": "x"}\n'

KINDS = {
    "preset": Kind(_text("mine.yaml", "method: bm25\nk1: 0.9\n"), lambda file: load_retriever(str(file))),
    "selection of a budget": Kind(_selection, read_selection),
    "fitted selector": Kind(_selector, load_artefact),
    "codec": Kind(_codec, load_codec, is_text=False),
    "entry of a ledger": Kind(_entry, lambda file: Ledger(file.parent).get_json("entry")),
    "identity of a ledger": Kind(_identity, lambda file: Ledger(file.parent, {"job": 1})),
    "table in a ledger": Kind(_table_entry, lambda file: Ledger(file.parent).get_table(file.name), is_text=False),
    "run": Kind(_run, read_run),
    "run, compressed": Kind(_zipped("run.trec.gz", "q1 Q0 d1 1 1.5 x\n"), read_run, is_text=False),
    "qrels": Kind(_text("test.tsv", "query-id\tcorpus-id\tscore\nq1\td1\t1\n"), read_qrels),
    "queries": Kind(_text("queries.jsonl", LINES), read_queries),
    "queries in columns": Kind(_text("queries.tsv", "q1\ttext\nq2\ttext\n"), read_queries),
    "corpus": Kind(_text("corpus.jsonl", LINES), _scan),
    "corpus, compressed": Kind(_zipped("corpus.jsonl.gz", LINES), _scan, is_text=False),
    "corpus in CSV": Kind(_text("corpus.csv", "id,text\n" + "".join(f"d{i},text {i}\n" for i in range(9))), _scan_file),
    "corpus in JSON": Kind(_text("corpus.json", "[" + ",".join(LINES.splitlines()) + "]"), _scan_file),
    "corpus in Parquet": Kind(_table_file("corpus.parquet"), _scan_file, is_text=False),
    "corpus in Arrow": Kind(_table_file("corpus.arrow"), _scan_file, is_text=False),
    "Markdown": Kind(_text("a.md", "---\ntitle: A\ntags: [b]\n---\n# H\n\ntext\n"), _scan_file),
    "HTML": Kind(_text("a.html", "<meta charset=utf-8><title>A</title><p>text<!-- c --><pre>x\n</pre>"), _scan_file),
    "places of collections": Kind(
        _text("collections.json", CollectionPlaces(places={"docs": ("/one/docs", "/two/docs")}).model_dump_json()),
        lambda file: refuse_other_places(str(file.parent), as_collection(["a text"])),
    ),
    "quarantine": Kind(_text("bad.jsonl", BAD), lambda file: refuse_other_files(file, [])),
    "sweep": Kind(_sweep("sweep.json"), lambda file: read_manifest(file.parent)),
    "job of a sweep": Kind(_sweep("sweep.yaml"), _read_sweep_job),
    "outcomes of a sweep": Kind(
        _sweep("test/per_query.parquet"),
        lambda file: Outcomes.read(file.parents[1], "test", "dense", "nDCG@10"),
        is_text=False,
    ),
    "queries of a sweep": Kind(
        _sweep("test/queries.parquet"), lambda file: read_swept_queries(file.parents[1], "test"), is_text=False
    ),
    "encoded queries of a sweep": Kind(
        _sweep("test/encoded/q1-0.arrow"), lambda file: _split_of(file).encoded(1), is_text=False
    ),
    "report": Kind(_report("metrics.json"), lambda file: read_results(file.parent)),
    "values of a report": Kind(_report("per_query.parquet"), lambda file: read_results(file.parent), is_text=False),
    "latencies": Kind(
        _text("latencies.json", json.dumps({"latencies": {"device": "none", "lines": []}})), read_latencies
    ),
    "analysis of budgets": Kind(_analysis("report.json"), lambda file: read_analysis("Dream", file.parent)),
    "values of an analysis": Kind(
        _analysis("per_query.parquet"), lambda file: _values(read_analysis("Dream", file.parent)), is_text=False
    ),
    "mined negatives": Kind(_mined, _mine_again),
    "training set": Kind(_training_set("manifest.json"), _read_training_set),
    "examples of a training set": Kind(_training_set(EXAMPLES_FILE), _read_training_set, is_text=False),
    "passages of a training set": Kind(_training_set(PASSAGES_FILE), _read_training_set, is_text=False),
    "examples in lines": Kind(_text("train.jsonl", jsonl(map(tevatron, EXAMPLES))), _read_source),
    "examples in rows": Kind(_parquet_source, _read_source, is_text=False),
    "config of a checkpoint": Kind(_checkpoint("config.json"), lambda file: Checkpoint.open(file.parent)),
    "weights of a checkpoint": Kind(
        _checkpoint("model.safetensors"), lambda file: Checkpoint.open(file.parent), is_text=False
    ),
    "tokenizer": Kind(_checkpoint("vocab.json"), lambda file: load_vocabulary(str(file.parent)).tokenizer),
    "index of a checkpoint's weights": Kind(
        _text("model.safetensors.index.json", '{"weight_map": {"a": "model-1.safetensors"}}'),
        shards_of,
    ),
    "config of a job": Kind(_text("job.yaml", "index: some/index\nquery: x\n"), _read_job),
    "state of a training": Kind(_state, lambda file: _engine().load(file.parent), is_text=False),
    "manifest of a training": Kind(_manifest_of_a_training, _begin_again),
    "modules of a library's model": Kind(
        _text("modules.json", '[{"idx": 0, "path": "", "type": "x.Transformer"}]'),
        lambda file: _read_modules(file.parent),
    ),
    "config of an adapter": Kind(_adapter("adapter_config.json"), lambda file: AdapterFiles.open(file.parent)),
    "weights of an adapter": Kind(
        _adapter("adapter_model.safetensors"), lambda file: AdapterFiles.open(file.parent), is_text=False
    ),
    "slots of an adapter": Kind(_adapter(SLOTS_FILE), lambda file: check_trained(file.parent, 0), is_text=False),
    "manifest of an adapter": Kind(_adapter(MANIFEST_FILE), _trained_for),
}

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "emptied": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "its head alone": lambda data: data[:7],
    "other bytes": lambda data: bytes([0xFF, 0xFE, 0x00, 0x80] * 40),
    "zeros": lambda data: bytes(len(data)),
    "another value": lambda data: b"[1, 2]",
    "an object without fields": lambda data: b"{}",
    "of another version": lambda data: b'{"format": 99, "added by a newer version": {"x": 1}}',
    "in HTML": lambda data: b"<!DOCTYPE html><html><body>404 Not Found</body></html>",
}


class Hostile:
    """Makes a folder when it is unpickled."""

    def __init__(self, place: Path) -> None:
        self._place = str(place)

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (self._place,)


def _torch_archive(place: Path) -> bytes:
    stream = io.BytesIO()
    torch.save({"parameters": Hostile(place), "optimizer": {}}, stream)
    return stream.getvalue()


def _npy(place: Path) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array([Hostile(place)], object), allow_pickle=True)
    return stream.getvalue()


CODE: dict[str, Callable[[Path], bytes]] = {
    "a pickle": lambda place: pickle.dumps(Hostile(place)),
    "PyTorch's archive of one": _torch_archive,
    "NumPy's array of one": _npy,
    "YAML's objects": lambda place: f"!!python/object/apply:os.mkdir ['{place}']\n".encode(),
    "a field of YAML's": lambda place: f"method: !!python/object/apply:os.mkdir ['{place}']\n".encode(),
    "a module's name": lambda place: b'{"method": "hostile:run", "auto_map": {"A": "hostile.A"}}',
}
"""Code as a file can carry it, which makes a folder where it is run."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def write(kind: str) -> Path:
        if kind not in made:
            folder = tmp_path_factory.mktemp("kind")
            made[kind] = KINDS[kind].write(folder)
            KINDS[kind].read(made[kind])
        return made[kind]

    return write


def sentence_of(read: Callable[[Path], object], file: Path) -> str | None:
    """What a job would print after `error:`; None where the file was good. Anything unforeseen is raised."""
    try:
        read(file)
    except ValueError as error:
        return str(error)
    except OSError as error:
        if error.filename is None:
            raise
        return f"{error.filename}: {error.strerror}"
    return None


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_named_in_a_sentence(kind: str, damage: str, written: Callable[[str], Path]) -> None:
    file = written(kind)
    whole = file.read_bytes()
    try:
        file.write_bytes(DAMAGES[damage](whole))
        told = sentence_of(KINDS[kind].read, file)
    finally:
        file.write_bytes(whole)
    if told is None:
        assert KINDS[kind].is_text, "damaged bytes were taken for good ones"
        return
    first = told.splitlines()[0]
    assert file.name in told or file.parent.name in first or file.parent.parent.name in first
    assert "errors.pydantic.dev" not in told
    assert "Traceback" not in told
    assert len(told.splitlines()) < 8, told


@pytest.mark.parametrize("code", CODE)
@pytest.mark.parametrize("kind", KINDS)
def test_no_file_runs_code(
    kind: str, code: str, written: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hostile.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'ran')!r})\n")
    monkeypatch.syspath_prepend(tmp_path)
    file = written(kind)
    whole = file.read_bytes()
    try:
        file.write_bytes(CODE[code](tmp_path / "ran"))
        sentence_of(KINDS[kind].read, file)
    finally:
        file.write_bytes(whole)
    assert not (tmp_path / "ran").exists()
    assert "hostile" not in sys.modules


def _adapter_of_another_base(folder: Path) -> None:
    config = json.loads((folder / "adapter_config.json").read_text())
    config |= {"base_model_name_or_path": "s3://elsewhere/model", "revision": "main"}
    (folder / "adapter_config.json").write_text(json.dumps(config))


def test_the_base_that_an_adapter_names_is_never_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("an adapter's base was looked for")

    folder = _adapter("adapter_config.json")(tmp_path).parent
    _adapter_of_another_base(folder)
    for name in ("resolve_source", "_resolve"):
        monkeypatch.setattr(f"diffretriever.backbones.source.{name}", refuse)
    assert AdapterFiles.open(folder).config["r"] > 0


@pytest.mark.parametrize("name", ["../../outside", "/outside", "a/../../outside"])
def test_a_training_set_names_no_file_outside_of_its_folder(name: str, tmp_path: Path) -> None:
    """From a store they would be fetched into the cache."""
    file = _training_set("manifest.json")(tmp_path)
    values = json.loads(file.read_text())
    values["files"][name] = 1
    file.write_text(json.dumps(values))
    with pytest.raises(ValueError, match=r"manifest.json cannot be used: .*outside lies outside of the training set"):
        TrainingSet.open(file.parent)


@pytest.mark.parametrize("digest", ["../../outside", "/outside", ""])
def test_a_training_sets_digest_is_no_path(digest: str, tmp_path: Path) -> None:
    """It names a folder of the cache, which is made anew where it is damaged."""
    file = _training_set("manifest.json")(tmp_path)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"digest": digest}))
    with pytest.raises(ValueError, match=r"manifest.json cannot be used: digest: "):
        TrainingSet.open(file.parent)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_cannot_be_opened_is_named_in_a_sentence(kind: str, written: Callable[[str], Path]) -> None:
    """A folder in its place: the tests' user may be one whom no permission stops."""
    file = written(kind)
    kept = file.rename(file.with_name("kept"))
    try:
        file.mkdir()
        told = sentence_of(KINDS[kind].read, file)
    finally:
        file.rmdir()
        kept.rename(file)
    assert told is None or file.name in told or file.parent.name in told


PARSERS = {
    *("loads", "safe_load", "model_validate_json", "validate_json", "read_model"),
    *("read_table", "read_metadata", "ParquetFile", "open_file", "load_file", "safe_open", "from_pretrained"),
    *("torch.load", "np.load", "fromfile", "open_memmap", "memmap", "load_array"),
}
"""What bytes of a file are given to, by the last part of its name."""

_OURS = "[JSON that goes from one process to another]"
_CHECKED = "index/test_index_verify.py"
TRIED: dict[str, tuple[str, ...]] = {
    "artefacts/artefact.py": ("artefacts/test_artefact.py",),
    "backbones/adapter_files.py": ("config of an adapter", "weights of an adapter", "slots of an adapter"),
    "backbones/bert.py": ("tokenizer",),
    "backbones/checkpoint.py": (
        *("config of a checkpoint", "weights of a checkpoint", "index of a checkpoint's weights"),
    ),
    "backbones/qwen2.py": ("tokenizer",),
    "backbones/vocabulary.py": ("tokenizer",),
    "backbones/weights.py": ("weights of a checkpoint",),
    "budgets/selectors.py": ("fitted selector",),
    "client/exchange.py": ("client/test_client_fuzz.py",),
    "codecs/__init__.py": ("codec",),
    "collections/quarantine.py": ("quarantine",),
    "collections/records.py": ("corpus", "corpus, compressed", "queries", "queries in columns", "qrels", "run"),
    "collections/tables.py": ("corpus in CSV", "corpus in JSON", "corpus in Parquet", "corpus in Arrow"),
    "collections/texts.py": ("Markdown", "HTML"),
    "encoders/library_files.py": ("modules of a library's model",),
    "encoders/library_preparer.py": ("tokenizer",),
    "evaluation/sweeps.py": (
        *("sweep", "job of a sweep", "outcomes of a sweep", "queries of a sweep", "encoded queries of a sweep"),
    ),
    "files.py": ("report",),
    "index/compaction.py": (_OURS,),
    "index/collection_places.py": ("places of collections",),
    "index/damage.py": ("index/test_damage.py", "index/test_deletions.py"),
    "index/lease.py": ("[what cannot be read counts as the note of one that has just ended]",),
    "index/manifest.py": ("index/test_damage.py",),
    "index/mapped_files.py": ("search/test_fragment_files.py",),
    "index/rewrite.py": (_OURS,),
    "index/writer.py": (_OURS,),
    "ledger.py": ("entry of a ledger", "identity of a ledger", "table in a ledger"),
    "pipelines/compress.py": (_OURS,),
    "pipelines/encoder_start.py": (_OURS,),
    "pipelines/mining.py": ("mined negatives",),
    "pipelines/ray_executor.py": (_OURS,),
    "pipelines/sweep.py": ("job of a sweep",),
    "pipelines/training_data.py": (_OURS,),
    "presets.py": ("preset", "selection of a budget"),
    "studies/reproduction/exhibits/analyses.py": ("analysis of budgets",),
    "studies/reproduction/exhibits/hyperparameters.py": ("[data of this package]",),
    "studies/reproduction/exhibits/base.py": ("latencies",),
    "studies/reproduction/exhibits/prompts.py": ("[data of this package]",),
    "studies/reproduction/exhibits/published.py": ("[data of this package]",),
    "studies/reproduction/exhibits/query_features.py": ("values of an analysis",),
    "studies/reproduction/exhibits/statements.py": ("[data of this package]",),
    "studies/reproduction/layouts/__init__.py": ("[data of this package]",),
    "studies/reproduction/protocols.py": ("[data of this package]",),
    "studies/reproduction/report.py": ("report", "values of a report"),
    "studies/reproduction/tables.py": ("[data of this package]",),
    "schemas/settings.py": ("config of a job",),
    "search/dense/candidates.py": (_CHECKED,),
    "search/sparse/postings.py": ("search/test_postings_files.py",),
    "search/sparse/segment.py": ("search/test_postings_files.py",),
    "training/data/examples.py": ("examples in lines",),
    "training/data/sources.py": ("examples in rows",),
    "training/data/training_set.py": (*("training set", "examples of a training set", "passages of a training set"),),
    "training/engine.py": ("state of a training",),
    "training/run_folder.py": ("manifest of a training",),
}
"""Module that reads files → kinds above, files of tests, or in brackets why nobody's file can be damaged there."""


def parsing_modules() -> set[str]:
    root = Path(__file__).resolve().parents[1]
    found = set()
    for file in [*(root / "platform" / "diffretriever").rglob("*.py"), *(root / "schemas").glob("*.py")]:
        calls = [node.func for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.Call)]
        names = [ast.unparse(call) for call in calls]
        if any(name in PARSERS or name.rpartition(".")[2] in PARSERS for name in names):
            found.add(file.relative_to(root).as_posix().removeprefix("platform/diffretriever/"))
    return found


def test_every_reader_is_tried_here() -> None:
    """A module that begins to read files is named with the kind that it reads, so that its damages are tried."""
    assert parsing_modules() == TRIED.keys()
    root = Path(__file__).resolve().parents[1]
    for module, tries in TRIED.items():
        for each in tries:
            assert each in KINDS or each.startswith("[") or (root / "tests" / each).is_file(), f"{module}: {each}"
