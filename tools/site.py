"""Build the site: `make docs`. Pages of reference come from the code first, then Sphinx reads all; a warning ends it.

`commands.md` has the `--help` of every command, `configuration.md` the fields of a retriever's YAML file and the
settings of the server, `presets.md` the named retrievers, `metrics.md` the metrics of the server, `index-format.md` the
manifest, the columns and the files of an index.
"""

from __future__ import annotations

import os
import runpy
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from unittest import mock

import pyarrow as pa
import sphinx.cmd.build as sphinx
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from ray.serve.metrics import Counter, Histogram

from diffretriever.__main__ import commands
from diffretriever.index.manifest import table_schema
from diffretriever.presets import list_presets, load_retriever
from diffretriever.schemas import retriever
from diffretriever.schemas.codec import StoredCodec
from diffretriever.schemas.index import IndexManifest, codes_field
from diffretriever.schemas.serve import SearchTimings
from diffretriever.schemas.serve_config import ServeConfig
from diffretriever.serve.__main__ import Address
from diffretriever.serve.metrics import RayMetrics
from tools import ROOT

_WIDTH = "100"
_COLUMNS = {
    "id": "Id of the passage, unique in the index.",
    "collection": "Name of the collection that the passage comes from.",
    "title": "Title; empty if the record has none.",
    "text": "Text.",
    "digest": "BLAKE2b-128 of title, text and metadata, which shows changed passages.",
    "reps": "One vector of length 1 for each slot. Not in an index that `compress_index.py` compressed.",
    "slot_tokens": "Token id that each slot predicts.",
    "impact_ids": "Token ids of the sparse vector.",
    "impact_weights": "Weights of these tokens (impacts).",
    "n_tokens": "Tokens of the encoded passage.",
    "codes": "The vectors, encoded by the codec; only in a compressed index.",
    "row_checksum": "Checksum of the row, computed when it is written. `inspect_index.py --verify` compares it.",
}
FILES = {
    "passages.lance/": "The table, in Lance's format: data, deletions, transactions, and a manifest of each version.",
    "collections.json": "Paths or URIs that each collection was read from.",
    "encode.yaml": "Options of the last encode job.",
    "codecs/DIGEST.safetensors": "Codec of a compressed index.",
    "codes/KEY/": "8-bit codes of a fragment's vectors and of each passage's mean vector, and a copy of the vectors.",
    "codes/KEY/sketch/": "Binary sketches of a fragment: the candidate index.",
    "codes/candidates.json": "Result of the calibration of the candidate index.",
    "packed/KEY/": "Quantised vectors of a fragment of a compressed index.",
    "postings/KEY/": "Inverted index of a fragment's impacts.",
    "bm25/version-N/": "BM25 index of a version.",
    "quarantine.jsonl": "Records that an encode job rejected; on an object store, files in the folder `quarantine/`.",
    ".writer.lock": "Lock of the process that writes; on an object store, the folder `.writer.lease/`.",
}
"""Path in an index → contents. KEY, DIGEST and N differ by fragment, codec and version."""


def build(site: Path) -> int:
    """Write the site into a folder and return Sphinx's exit status, 0 without warnings."""
    _write(ROOT / "build" / "reference")
    status = sphinx.main(["--quiet", "--fail-on-warning", "-c", str(ROOT / "docs"), str(ROOT), str(site)])
    if not status:
        print(site / "docs" / "index.html")
    return status


def _write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pages = {
        "commands": _commands(),
        "configuration": _configuration(),
        "presets": _presets(),
        "metrics": metrics_reference(),
        "index-format": _index_format(),
    }
    for name, lines in pages.items():
        (folder / f"{name}.md").write_text("\n".join(lines) + "\n", "utf-8")


def _commands() -> Iterator[str]:
    yield "# Commands\n\nIn a checkout, `diffretriever NAME` is `python jobs/FILE.py`.\n"
    for name, job in commands().items():
        yield f"## {name}\n\n`python jobs/{job.name}`\n\n```text\n{_help_of(job)}\n```\n"


def _help_of(job: Path) -> str:
    printed = StringIO()
    arguments, environment = [f"jobs/{job.name}", "--help"], {**os.environ, "COLUMNS": _WIDTH}
    with (
        mock.patch.object(sys, "argv", arguments),
        mock.patch.object(sys, "path", [str(job.parent), *sys.path]),
        mock.patch.dict(os.environ, environment),
        redirect_stdout(printed),
        suppress(SystemExit),
    ):
        runpy.run_path(str(job), run_name="__main__")
    return printed.getvalue().replace(str(job), f"jobs/{job.name}").strip()


def _configuration() -> Iterator[str]:
    yield "# Configuration\n\n## A retriever's YAML file\n\nThe key `method` chooses which fields follow.\n"
    kinds = (
        retriever.MaskedRetriever,
        retriever.GeneratedRetriever,
        retriever.PooledRetriever,
        retriever.TokensRetriever,
        retriever.LibraryRetriever,
        retriever.Bm25Retriever,
    )
    for kind in kinds:
        yield f"### `method: {kind.model_fields['method'].default}`\n\n{_sentence(kind.__doc__)}\n"
        yield from _table(kind)
    yield "## The backbone of a retriever: `backbone`\n"
    yield from _table(retriever.BackboneConfig)
    yield "## The server: `python -m serve NAME=VALUE ...`\n"
    yield from _table(ServeConfig)
    yield "`python -m serve` also takes:\n"
    yield from _table(Address)


def _table(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    if not prefix:
        yield "| field | default | meaning |\n|---|---|---|"
    for name, field in model.model_fields.items():
        if isinstance(field.default, BaseModel):
            yield from _table(type(field.default), f"{prefix}{name}.")
        elif name != "method":
            yield f"| `{prefix}{name}` | {_default(field)} | {_sentence(field.description)} |"
    if not prefix:
        yield ""


def _default(field: FieldInfo) -> str:
    """Return a default as in YAML; nothing for an unset or empty one."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    shown = str(value).lower() if isinstance(value, bool) else str(value)
    return "" if value in (None, "", (), {}) else f"`{shown}`"


def _presets() -> Iterator[str]:
    yield "# Presets\n\nPass a name to `--retriever` or to `dr.Retriever`.\n\n| name | use |\n|---|---|"
    yield from (f"| `{name}` | {purpose} |" for name, purpose in list_presets().items())


def metrics_reference() -> Iterator[str]:
    """Yield the lines of the reference of the server's metrics."""
    yield "# Metrics\n\n`GET /metrics` of a server exports these metrics in Prometheus' format, and Ray Serve's own,"
    yield "`ray_serve_*`. Ray adds the labels `application`, `deployment` and `replica`.\n"
    yield "| metric | type | labels | meaning |\n|---|---|---|---|"
    metrics = RayMetrics().metrics.values()
    for metric in metrics:
        info, kind = metric.info, type(metric).__name__.lower()
        suffix = "_total" if isinstance(metric, Counter) else ""
        labels = ", ".join(f"`{label}`" for label in info["tag_keys"])
        yield f"| `ray_{info['name']}{suffix}` | {kind} | {labels} | {_sentence(info['description'])} |"
    yield "\nA histogram has the series `_bucket`, `_sum` and `_count`. Upper bounds of its buckets:\n"
    for metric in metrics:
        if isinstance(metric, Histogram):
            yield f"- `ray_{metric.info['name']}`: {', '.join(f'{bound:g}' for bound in metric.boundaries)}"
    stages = ", ".join(f"`{name}`" for name in SearchTimings.model_fields)
    yield f"\n- `stage`: {stages}, the fields of `timings_ms` in a response."
    yield "- `kind`: kind of batch, `answer`; with `layout: apart` also `encode` and `search`."
    yield "- `level`: load level, 1 or 2."


def _index_format() -> Iterator[str]:
    yield "# Index format\n\nAn index is a folder, or a prefix of an object store. LanceDB opens it as a database with"
    yield "the table `passages`.\n\n## Files\n\n| path | contents |\n|---|---|"
    yield from (f"| `{path}` | {contents} |" for path, contents in FILES.items())
    yield "\nFragments are immutable, and so are the files of a fragment. KEY is made of the names of its data files."
    yield "`accelerate_index.py` rebuilds `codes`, `packed`, `postings` and `bm25`. The file `listing.json` in their"
    yield "folders has the size and the SHA-256 of each file. On an object store the others are in a subfolder.\n"
    yield "## Columns\n\nOne row is one passage. Each metadata field is a further column, which can be null. An index"
    yield "of `bm25` has the text columns and the checksum. H is the dimension of a vector, W the bytes of a code.\n"
    yield "| column | Arrow type | meaning |\n|---|---|---|"
    for field in [*_schema(), codes_field(1)]:
        yield f"| `{field.name}` | `{_arrow_type(field.type)}` | {_COLUMNS[field.name]} |"
    yield "\n## Manifest\n\nThe table's schema metadata have this JSON object under the key `diffretriever.manifest`.\n"
    yield from _table(IndexManifest)
    yield "`codec` is an object:\n"
    yield from _table(StoredCodec)


def _schema() -> pa.Schema:
    preset = load_retriever("diffretriever-minilm")
    return table_schema(IndexManifest(retriever=preset, hidden_size=1, created=""))


def _arrow_type(kind: pa.DataType) -> str:
    if pa.types.is_fixed_size_list(kind):
        return f"{kind.value_type}[{'W' if kind.value_type == pa.uint8() else 'H'}]"
    return f"list<{_arrow_type(kind.value_type)}>" if pa.types.is_list(kind) else str(kind)


def _sentence(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "site")
    raise SystemExit(build(parser.parse_args().output))
