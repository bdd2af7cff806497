"""The public BEIR collections by name, downloaded once and checked."""

from __future__ import annotations

import hashlib
import logging
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

from diffretriever.collections.archive import unpack
from diffretriever.collections.beir import open_beir_folder
from diffretriever.collections.files import FileCollection
from diffretriever.files import cache_dir, whole_file

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
"""MD5 of each archive as BEIR publishes it."""

_FORUMS = (
    *("android", "english", "gaming", "gis", "mathematica", "physics", "programmers"),
    *("stats", "tex", "unix", "webmasters", "wordpress"),
)

FOLDERS = {name: name for name in ARCHIVE_MD5 if name != "cqadupstack"} | {
    f"cqadupstack-{forum}": f"cqadupstack/{forum}" for forum in _FORUMS
}
"""Collection name → folder within the archive; the folder's first part names the archive."""

_TIMEOUT_SECONDS = 60
_BLOCK_BYTES = 1 << 20


def open_dataset(name: str) -> FileCollection:
    """Open a collection of `FOLDERS`, downloading its archive to the cache if it is not there.

    Raises:
        ValueError: It cannot be downloaded, or what came is not what BEIR publishes.
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
