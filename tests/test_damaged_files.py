"""Files of every kind that jobs read, damaged in every way: what a user sees is a sentence that names the file.

A new kind is a line of `KINDS`. tests/index damages the table of an index and its derived files.
"""

from __future__ import annotations

import gzip
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
from pyarrow import parquet

from diffretriever.backbones.adapter import AdapterFiles
from diffretriever.backbones.checkpoint import Checkpoint
from diffretriever.backbones.loader import load_vocabulary
from diffretriever.collections import Run, open_collection, read_run, scan, write_run
from diffretriever.collections.base import read_queries
from diffretriever.collections.documents import as_collection
from diffretriever.collections.trec import read_qrels
from diffretriever.core.ledger import Ledger
from diffretriever.index.collection_records import refuse_other_locations
from diffretriever.index.vectors import read_codec
from diffretriever.presets import load_retriever
from diffretriever.schemas.index import CollectionRecords
from diffretriever.schemas.search import SearchJob
from diffretriever.schemas.settings import read_settings
from diffretriever.schemas.training_data import PrepareTrainingJob
from diffretriever.testing.adapters import write_random_adapter
from diffretriever.testing.checkpoints import write_random_checkpoint
from diffretriever.training.data.training_set import EXAMPLES_FILE, TrainingSet
from diffretriever.vectors.product import Codec
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
        data = text.encode()
        (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return folder / name

    return write


def _codec(folder: Path) -> Path:
    vectors = np.random.default_rng(0).normal(size=(64, 16)).astype(np.float16)
    codec = Codec.train(2, vectors)
    file = folder / f"{codec.digest}.safetensors"
    file.write_bytes(codec.to_bytes())
    return file


def _ledger(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        ledger = Ledger(folder, {"job": 1})
        ledger.put_json("entry", {"rows": 3})
        ledger.put_table("entry.arrow", pa.table({"numbers": np.arange(100)}))
        return folder / name

    return write


def _run(folder: Path) -> Path:
    write_run(folder / "dense.trec", [Run.of({"q1": {"d1": 1.5, "d2": 0.5}, "q2": {"d1": 1.0}})], "dense")
    return folder / "dense.trec"


def _training_set(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        source = _text("train.jsonl", jsonl(map(tevatron, EXAMPLES)))(folder)
        prepared(PrepareTrainingJob(source=(str(source),), output=folder / "set"))
        return folder / "set" / name

    return write


def _read_training_set(file: Path) -> object:
    found = TrainingSet.open(file.parent)
    return [found.example(row) for row in range(len(found))]


def _checkpoint(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        return write_random_checkpoint("dream", folder, hidden_size=32) / name

    return write


def _adapter(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        write_random_checkpoint("dream", folder / "model", hidden_size=32)
        return write_random_adapter(folder / "model", folder / "adapter") / name

    return write


def _scan(place: Path) -> object:
    return scan(open_collection(str(place)), "error", None).n_records


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

KINDS = {
    "preset": Kind(_text("mine.yaml", "method: bm25\nk1: 0.9\n"), lambda file: load_retriever(str(file))),
    "config of a job": Kind(
        _text("job.yaml", "index: some/index\nquery: x\n"), lambda file: read_settings(SearchJob, str(file))
    ),
    "codec": Kind(_codec, lambda file: read_codec(str(file), file.stem), is_text=False),
    "entry of a ledger": Kind(_ledger("entry"), lambda file: Ledger(file.parent).get_json("entry")),
    "identity of a ledger": Kind(_ledger("identity"), lambda file: Ledger(file.parent, {"job": 1})),
    "table in a ledger": Kind(
        _ledger("entry.arrow"), lambda file: Ledger(file.parent).get_table(file.name), is_text=False
    ),
    "run": Kind(_run, read_run),
    "run, compressed": Kind(_text("run.trec.gz", "q1 Q0 d1 1 1.5 x\n"), read_run, is_text=False),
    "qrels": Kind(_text("test.tsv", "query-id\tcorpus-id\tscore\nq1\td1\t1\n"), read_qrels),
    "queries": Kind(_text("queries.jsonl", LINES), read_queries),
    "queries in columns": Kind(_text("queries.tsv", "q1\ttext\nq2\ttext\n"), read_queries),
    "corpus": Kind(_text("corpus.jsonl", LINES), lambda file: _scan(file.parent)),
    "corpus, compressed": Kind(_text("corpus.jsonl.gz", LINES), lambda file: _scan(file.parent), is_text=False),
    "corpus in CSV": Kind(_text("corpus.csv", "id,text\n" + "".join(f"d{i},text {i}\n" for i in range(9))), _scan),
    "corpus in JSON": Kind(_text("corpus.json", "[" + ",".join(LINES.splitlines()) + "]"), _scan),
    "corpus in Parquet": Kind(_table_file("corpus.parquet"), _scan, is_text=False),
    "corpus in Arrow": Kind(_table_file("corpus.arrow"), _scan, is_text=False),
    "Markdown": Kind(_text("a.md", "---\ntitle: A\ntags: [b]\n---\n# H\n\ntext\n"), _scan),
    "HTML": Kind(_text("a.html", "<meta charset=utf-8><title>A</title><p>text<!-- c --><pre>x\n</pre>"), _scan),
    "places of collections": Kind(
        _text("collections.json", CollectionRecords(locations={"docs": ("/one/docs", "/two/docs")}).model_dump_json()),
        lambda file: refuse_other_locations(str(file.parent), as_collection(["a text"])),
    ),
    "training set": Kind(_training_set("manifest.json"), _read_training_set),
    "examples of a training set": Kind(_training_set(EXAMPLES_FILE), _read_training_set, is_text=False),
    "config of a checkpoint": Kind(_checkpoint("config.json"), lambda file: Checkpoint.open(file.parent)),
    "weights of a checkpoint": Kind(
        _checkpoint("model.safetensors"), lambda file: Checkpoint.open(file.parent), is_text=False
    ),
    "tokenizer": Kind(_checkpoint("vocab.json"), lambda file: load_vocabulary(str(file.parent)).tokenizer),
    "config of an adapter": Kind(_adapter("adapter_config.json"), lambda file: AdapterFiles.open(file.parent)),
    "weights of an adapter": Kind(
        _adapter("adapter_model.safetensors"), lambda file: AdapterFiles.open(file.parent), is_text=False
    ),
}

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "emptied": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "other bytes": lambda data: bytes([0xFF, 0xFE, 0x00, 0x80] * 40),
    "another value": lambda data: b"[1, 2]",
    "of another version": lambda data: b'{"format": 99, "added by a newer version": {"x": 1}}',
}


class Hostile:
    """Makes a folder when it is unpickled."""

    def __init__(self, place: Path) -> None:
        self._place = str(place)

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (self._place,)


CODE: dict[str, Callable[[Path], bytes]] = {
    "a pickle": lambda place: pickle.dumps(Hostile(place)),
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


@pytest.mark.parametrize("name", ["../../outside", "/outside", "a/../../outside"])
def test_a_training_set_names_no_file_outside_of_its_folder(name: str, tmp_path: Path) -> None:
    """Its files are fetched into the cache, into a folder of the name of its digest."""
    file = _training_set("manifest.json")(tmp_path)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"digest": name}))
    with pytest.raises(ValueError, match=r"manifest\.json cannot be used: digest: "):
        TrainingSet.open(file.parent)
