"""Readers and writers: BEIR, MS MARCO, `ir_datasets`, tables, texts, the built-in collection, runs and judgements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePath

from diffretriever.collections import beir, irds, msmarco
from diffretriever.collections.base import Collection, FileCollection, read_queries
from diffretriever.collections.beir import FOLDERS, open_dataset
from diffretriever.collections.documents import checked_fields
from diffretriever.collections.pydoc import PYDOC, open_pydoc
from diffretriever.collections.records import BadInputError, BadRecord, Passage, Qrels, Query, TextFile, find_file
from diffretriever.collections.runs import Run, read_run, write_run
from diffretriever.collections.scanning import BadInputPolicy, ScanResult, scan, set_aside
from diffretriever.collections.tables import READERS, TableCollection
from diffretriever.collections.texts import READERS as TEXTS
from diffretriever.collections.texts import is_text, open_text_file, open_texts_folder
from diffretriever.collections.trec import read_qrels
from diffretriever.core.files import is_file, is_folder, is_local
from diffretriever.schemas.base import suggest
from diffretriever.schemas.locations import StorePath, plain_location

__all__ = [
    "BadInputError",
    "BadInputPolicy",
    "BadRecord",
    "Collection",
    "Passage",
    "Qrels",
    "Query",
    "Run",
    "ScanResult",
    "open_collection",
    "read_qrels",
    "read_queries",
    "read_run",
    "scan",
    "set_aside",
    "write_run",
]

_CORPUS_ENDS = (".jsonl", ".jsonl.gz", ".tsv", ".tsv.gz")


def open_collection(source: str, fields: Mapping[str, str] | None = None) -> Collection:
    """Open a collection by path, URI or name; an existing path takes precedence over a name.

    Paths: a BEIR folder or zip; an MS MARCO folder; a corpus file, `.jsonl` or `.tsv` (or `.gz` of these); a table,
    `.csv`, `.json`, `.parquet`, `.arrow` or `.feather`; or a folder of `.md`, `.txt` and `.html` files, or one such
    file. All but zips can also be streamed from an object store. Names: `pydoc`, a public BEIR collection, which is
    downloaded once, or `irds:NAME` for `ir_datasets`.

    Args:
        source: path, URI or name.
        fields: maps `id`, `title` or `text` to column names of a table.

    Raises:
        ValueError: the source is unknown or unreadable, or `fields` is given for another source than a table.

    Example:
        >>> collection = dr.open_collection("garden")
        >>> [passage.id for passage in collection.records()], collection.splits()
        (['roses', 'bread'], ['test'])
        >>> [query.text for query in collection.queries("test")]
        ['when do I cut roses?', 'how often is sourdough fed?']
    """
    opened = _opened(plain_location(source))
    if not fields:
        return opened
    if not isinstance(opened, TableCollection):
        raise ValueError(f"{source}: its fields have fixed names: only those of a table can be named")
    return replace(opened, fields=checked_fields(fields))


def _opened(source: str) -> Collection:
    path = Path(source).absolute() if is_local(source) else StorePath(source)
    name = path.resolve().name if isinstance(path, Path) else path.name
    shown = source.rstrip("/") or "/"
    if source and is_file(path):
        return _open_file(path, name, shown)
    if source and is_folder(path):
        return _open_folder(path, name, shown)
    if isinstance(path, StorePath):
        raise ValueError(f"no collection '{path}': no such object or folder")
    if source == PYDOC:
        return open_pydoc()
    if source in FOLDERS:
        return open_dataset(source)
    if source.startswith(irds.PREFIX):
        return irds.open_irds(source)
    # High cutoff: the user may have meant a path, such as `my-corpus`, not `nfcorpus`.
    hint = suggest(source, [PYDOC, *FOLDERS], cutoff=0.8)
    raise ValueError(f"no collection '{source}': no such file or folder, no such name.{hint}")


def _open_file(path: Path | StorePath, name: str, shown: str) -> Collection:
    if ".zip" in (path.suffix, PurePath(name).suffix):
        if isinstance(path, StorePath):
            raise ValueError(f"{shown}: a zip cannot be streamed: upload the folder in it instead")
        return beir.open_beir_zip(path, shown)
    for end in _CORPUS_ENDS:
        if name.endswith(end):
            return FileCollection(name.removesuffix(end), TextFile(path, shown), {})
    if PurePath(name).suffix in READERS:
        return TableCollection(PurePath(name).stem, TextFile(path, shown), {})
    if is_text(name):
        return open_text_file(path, name, shown)
    raise ValueError(f"{shown}: a file must end in .zip, {', '.join([*_CORPUS_ENDS, *READERS, *TEXTS])}")


def _open_folder(path: Path | StorePath, name: str, shown: str) -> Collection:
    if find_file(path, beir.CORPUS, shown):
        return beir.open_beir_folder(path, name, shown)
    if any(find_file(path, file, shown) for file in (msmarco.CORPUS, *msmarco.ARCHIVES)):
        return msmarco.open_msmarco_folder(path, name, shown)
    if texts := open_texts_folder(path, name, shown):
        return texts
    raise ValueError(
        f"{shown}: neither {beir.CORPUS} (BEIR) nor {msmarco.CORPUS} (MS MARCO), nor .gz of them, nor a text "
        f"({', '.join(TEXTS)}) there"
    )
