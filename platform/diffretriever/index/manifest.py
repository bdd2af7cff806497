"""The manifest of an index, stored in the schema metadata of its Lance table."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from importlib import metadata
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pydantic import ValidationError

from diffretriever.schemas.base import differing_fields, error_messages
from diffretriever.schemas.index import (
    MANIFEST_FORMAT,
    ROW_CHECKSUM,
    IndexManifest,
    metadata_fields,
    passage_schema,
)
from diffretriever.schemas.installed import MISSING, names_installed
from diffretriever.schemas.retriever import Bm25Retriever

if TYPE_CHECKING:
    from diffretriever.encoders.base import Encoder

_LOG = logging.getLogger(__name__)
_LIBRARIES = ("tokenizers", "torch", "transformers")
"""Other libraries that affect token ids and vectors; their versions are stored but not compared."""
_MOST_DIFFERENCES = 5
"""Number of fields named in a message."""
_KEY = b"diffretriever.manifest"
_CHECKSUM_FIELD = pa.field(ROW_CHECKSUM, pa.uint32(), nullable=False)


def manifest_of(encoder: Encoder) -> IndexManifest:
    """Describe a loaded encoder; `auto` is replaced by the resolved precision."""
    config, facts = encoder.config, encoder.facts
    packages = [config.method.partition(":")[0]] if names_installed(config.method) else []
    resolved = config.model_copy(update={"backbone": config.backbone.model_copy(update={"dtype": facts.dtype})})
    return IndexManifest(
        retriever=resolved,
        weights=facts.weights,
        tokenizer=facts.tokenizer,
        libraries={name: metadata.version(name) for name in (*_LIBRARIES, *packages)},
        hidden_size=facts.hidden_size,
        vocab_size=facts.vocab_size,
        created=_now(),
    )


def bm25_manifest(config: Bm25Retriever) -> IndexManifest:
    """Describe a BM25 index."""
    return IndexManifest(retriever=config, created=_now())


def check_same(index: IndexManifest, encoder: IndexManifest, uri: str) -> None:
    """Raise ValueError that names the fields in which `encoder` differs from the index's retriever."""
    if index.fingerprint == encoder.fingerprint:
        return
    # Another method has other fields, so name it first.
    differing = differing_fields(index.identity(), encoder.identity())
    differing.sort(key=lambda text: not text.startswith("retriever.method:"))
    if index.tokenizer != encoder.tokenizer and index.libraries != encoder.libraries:
        # Other library versions may serialise the same tokenizer differently.
        differing.insert(0, f"versions of libraries: {index.libraries} != {encoder.libraries}")
    first, rest = differing[:_MOST_DIFFERENCES], differing[_MOST_DIFFERENCES:]
    listed = "\n  ".join([*first, f"and {len(rest)} more"] if rest else first)
    raise ValueError(
        f"{uri} was made by another retriever: use that one, or another index (index != this retriever):\n  {listed}"
    )


def table_schema(manifest: IndexManifest) -> pa.Schema:
    """Return the schema of an index's table, with row checksums, and the manifest in its metadata."""
    fields = [*passage_schema(manifest.hidden_size, manifest.codec), *metadata_fields(manifest.metadata)]
    schema = pa.schema([*fields, _CHECKSUM_FIELD])
    return schema.with_metadata({_KEY: manifest.model_dump_json().encode()})


def manifest_in(dataset: Any, uri: str) -> IndexManifest:
    """Return the manifest of a Lance dataset; raise ValueError as `PassageIndex.open`."""
    text = (dataset.schema.metadata or {}).get(_KEY)
    if text is None:
        raise ValueError(f"{dataset.uri} is a Lance table that diffretriever did not make")
    try:
        manifest = IndexManifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == MISSING:
            raise ValueError(f"{uri}: {first['msg']}") from None
        raise ValueError(
            f"the manifest of {uri} cannot be read ({error_messages(error)[0]}): if another version made it, encode it "
            f"again; if it is damaged, restore {dataset.uri}/_versions from a copy"
        ) from error
    if manifest.format != MANIFEST_FORMAT:
        raise ValueError(f"{uri} was made by another version of diffretriever: encode it again")
    return manifest


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
