"""BEIR collections: local folders and zips, and public collections that are downloaded once and verified.

The layout is `corpus.jsonl`, `queries.jsonl` and `qrels/{split}.tsv`; each may be `.gz`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

from diffretriever.collections.base import FileCollection, Split, splits_in
from diffretriever.collections.records import Passage, Qrels, Query, find_file
from diffretriever.core.files import cache_dir, locked, whole_file, whole_folder
from diffretriever.schemas.locations import StorePath

CORPUS = "corpus.jsonl"

QUERIES = "queries.jsonl"

BASE_URL = "https://public.ukp.informatik.tu-darmstadt.de/thakur/BEIR/datasets"

ARCHIVE_MD5 = {
    "arguana": "8ad3e3c2a5867cdced806d6503f29b99",
    "climate-fever": "8b66f0a9126c521bae2bde127b4dc99d",
    "cqadupstack": "4e41456d7df8ee7760a7f866133bda78",
    "dbpedia-entity": "c2a39eb420a3164af735795df012ac2c",
    "fever": "5a818580227bfb4b35bb6fa46d9b6c03",
    "fiqa": "17918ed23cd04fb15047f73e6c3bd9d9",
    "hotpotqa": "f412724f78b0d91183a0e86805e16114",
    "msmarco": "444067daf65d982533ea17ebd59501e4",
    "nfcorpus": "a89dba18a62ef92f7d323ec890a0d38d",
    "nq": "d4d3d2e48787a744b6f6e691ff534307",
    "quora": "18fb154900ba42a600f84b839c173167",
    "scidocs": "38121350fc3a4d2f48850f6aff52e4a9",
    "scifact": "5f7d1de60b170fc8027bb7898e2efca1",
    "trec-covid": "ce62140cb23feb9becf6270d0d1fe6d1",
    "webis-touche2020": "46f650ba5a527fc69e0a6521c5a23563",
}
"""Published MD5 of each archive."""

_FORUMS = (
    *("android", "english", "gaming", "gis", "mathematica", "physics", "programmers"),
    *("stats", "tex", "unix", "webmasters", "wordpress"),
)

FOLDERS = {name: name for name in ARCHIVE_MD5 if name != "cqadupstack"} | {
    f"cqadupstack-{forum}": f"cqadupstack/{forum}" for forum in _FORUMS
}
"""Collection name → folder within the archive; the folder's first part names the archive."""

PUBLISHED_PASSAGES = {
    "arguana": 8_674,
    "climate-fever": 5_416_593,
    "dbpedia-entity": 4_635_922,
    "fever": 5_416_568,
    "fiqa": 57_638,
    "hotpotqa": 5_233_329,
    "msmarco": 8_841_823,
    "nfcorpus": 3_633,
    "nq": 2_681_468,
    "quora": 522_931,
    "scidocs": 25_657,
    "scifact": 5_183,
    "trec-covid": 171_332,
    "webis-touche2020": 382_545,
}
"""Passages of the collections, as BEIR counts them."""

_TIMEOUT_SECONDS = 60

_DAMAGES = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)
"""Exceptions of `zipfile` for an unreadable zip."""

_BLOCK_BYTES = 1 << 20


def open_beir_folder(folder: Path | StorePath, name: str, shown: str) -> FileCollection:
    """Open a folder; messages name its files under `shown`. Without `queries.jsonl` or `qrels/` it has no splits.

    Raises:
        ValueError: the folder has no corpus.
    """
    corpus = find_file(folder, CORPUS, shown)
    if corpus is None:
        raise ValueError(f"{shown}: no {CORPUS} or {CORPUS}.gz there")
    return FileCollection(name, corpus, _splits(folder, shown))


def _splits(folder: Path | StorePath, shown: str) -> dict[str, Split]:
    queries = find_file(folder, QUERIES, shown)
    if queries is None:
        return {}
    splits = {}
    for name in splits_in(folder / "qrels"):
        qrels = find_file(folder / "qrels", f"{name}.tsv", f"{shown}/qrels")
        if qrels is not None and not name.startswith("."):
            splits[name] = Split(queries, qrels)
    return splits


def open_beir_zip(path: Path, shown: str) -> FileCollection:
    """Open a zip that contains one BEIR folder at any level; it is unpacked once to the cache.

    Raises:
        ValueError: the zip is damaged, or contains no BEIR folder or several.
    """
    root = unpack(path)
    folders = sorted({file.parent for file in root.rglob(f"{CORPUS}*") if file.name in (CORPUS, f"{CORPUS}.gz")})
    inside = [folder.relative_to(root).as_posix() for folder in folders]
    if not folders:
        raise ValueError(f"{shown}: the zip has no {CORPUS}; this is not a BEIR collection")
    if len(folders) > 1:
        raise ValueError(f"{shown}: the zip has {len(folders)} collections ({', '.join(inside)}): unpack it, open one")
    return open_beir_folder(folders[0], path.stem, f"{shown}/{inside[0]}".removesuffix("/."))


def open_dataset(name: str) -> FileCollection:
    """Open a collection of `FOLDERS`; the first call downloads its archive to the cache.

    Raises:
        ValueError: the download fails, or its MD5 differs from the published one.
    """
    folder = FOLDERS[name]
    root = unpack(_download(folder.partition("/")[0]))
    return open_beir_folder(root / folder, name, name)


def _download(archive: str) -> Path:
    target = cache_dir() / "downloads" / f"{archive}.zip"
    if target.is_file():
        return target
    url = f"{BASE_URL}/{archive}.zip"
    logging.getLogger(__name__).info("downloading %s", url)
    digest = hashlib.md5(usedforsecurity=False)
    with whole_file(target) as sink:
        try:
            with urlopen(url, timeout=_TIMEOUT_SECONDS) as source:  # noqa: S310 - the address is a constant
                while block := source.read(_BLOCK_BYTES):
                    digest.update(block)
                    sink.write(block)
        except (OSError, HTTPException) as error:
            raise ValueError(
                f"cannot download {url}: {error}. Where there is no network, bring the zip and give its path."
            ) from error
        if digest.hexdigest() != ARCHIVE_MD5[archive]:
            raise ValueError(
                f"{url}: MD5 is {digest.hexdigest()}, not the published {ARCHIVE_MD5[archive]}. "
                "The download was cut short or the file has changed: try again, or give a good zip's path."
            )
    return target


def unpack(path: Path) -> Path:
    """Return the folder of an unpacked zip; the first call unpacks it to the cache.

    Zips are identified by path, size and modification time.

    Raises:
        ValueError: the file is damaged or not a zip.
    """
    status = path.stat()
    key = f"{path.absolute()}\n{status.st_size}\n{status.st_mtime_ns}"
    target = cache_dir() / "unpacked" / hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
    if target.is_dir():
        return target
    with locked(target.parent.with_suffix(".lock")):
        if not target.is_dir():
            remove_abandoned(target.parent)
            _unpack(path, target, status)
    return target


def remove_abandoned(folder: Path) -> None:
    """Remove unfinished folders of killed processes; the caller must hold the lock."""
    for left in folder.glob(".*.tmp"):
        shutil.rmtree(left, ignore_errors=True)


def _unpack(path: Path, target: Path, status: os.stat_result) -> None:
    try:
        with zipfile.ZipFile(path) as archive, whole_folder(target) as folder:
            # zipfile writes no links and stays inside the folder.
            archive.extractall(folder)
            for file in folder.rglob("*"):
                # The zip's time, so that unpacking again does not change the collection's state.
                os.utime(file, ns=(status.st_mtime_ns, status.st_mtime_ns))
    except (*_DAMAGES, FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise ValueError(f"{path}: cannot be unpacked: {error}") from error


def write_beir_folder(
    folder: Path, passages: Iterable[Passage], queries: Iterable[Query], qrels: Mapping[str, Qrels]
) -> None:
    """Write a collection to an existing, empty folder, with qrels by split."""
    _write_lines(folder / CORPUS, ({"_id": p.id, "title": p.title, "text": p.text} for p in passages))
    _write_lines(folder / QUERIES, ({"_id": query.id, "text": query.text} for query in queries))
    (folder / "qrels").mkdir()
    for split, judgements in qrels.items():
        with (folder / "qrels" / f"{split}.tsv").open("w", encoding="utf-8", newline="\n") as stream:
            stream.write("query-id\tcorpus-id\tscore\n")
            for query_id, judged in judgements.items():
                stream.writelines(f"{query_id}\t{passage_id}\t{rel}\n" for passage_id, rel in judged.items())


def _write_lines(path: Path, objects: Iterable[dict[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        stream.writelines(json.dumps(value, ensure_ascii=False) + "\n" for value in objects)
