"""The vectors of a compressed index: quantised vectors in the column `codes`, with or without the originals (`reps`).

Without `reps`, the decoded vectors, rounded to fp16, are the stored vectors. A codec decodes each vector by itself, so
all readers get the same bits.

Legend: N vectors of a batch, P passages, H hidden size, W bytes of an encoded vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

from diffretriever.core.files import read_bytes
from diffretriever.schemas.index import IndexManifest, codes_field, representation_fields
from diffretriever.vectors.representations import read_vectors

if TYPE_CHECKING:
    from diffretriever.vectors.product import Codec

T = TypeVar("T", pa.Table, pa.RecordBatch)


def codec_file(uri: str, digest: str) -> str:
    """Return the path or URI of a codec's file in the index at `uri`."""
    return f"{uri.rstrip('/')}/codecs/{digest}.safetensors"


def codec_of(uri: str, manifest: IndexManifest) -> Codec:
    """Return the codec of a compressed index; raise ValueError if its file is missing or has another codec."""
    assert manifest.codec is not None, "the index has a codec"
    return _load(codec_file(uri, manifest.codec.digest), manifest.codec.digest)


def with_vectors(uri: str, manifest: IndexManifest, rows: T, columns: Sequence[str]) -> T:
    """Return rows (of `IndexManifest.stored_columns`) with these columns; `reps` is decoded."""
    if "reps" not in columns:
        return rows
    packed_NW, offsets = read_packed(rows)
    vectors_NH = codec_of(uri, manifest).decode(packed_NW).astype(np.float16)
    decoded = _column(representation_fields(vectors_NH.shape[1])[0], vectors_NH, offsets)
    names = [*columns, *(name for name in rows.schema.names if name not in columns and name != "codes")]
    arrays = [decoded if name == "reps" else rows.column(name) for name in names]
    decoded_rows: T = type(rows).from_arrays(arrays, names=names)
    return decoded_rows


def with_packed(uri: str, manifest: IndexManifest, rows: T) -> T:
    """Return rows with the encoded `reps` in an additional column `codes`."""
    codec = codec_of(uri, manifest)
    vectors_NH, offsets = read_vectors(rows)
    packed = _column(codes_field(codec.bytes_per_vector), codec.encode(vectors_NH), offsets)
    encoded_rows: T = type(rows).from_arrays([*rows.columns, packed], names=[*rows.schema.names, "codes"])
    return encoded_rows


def read_packed(rows: pa.Table | pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
    """Return the column `codes`: uint8 [N, W], and int64 offsets [P + 1]."""
    column = rows.column("codes")
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    packed_NW = column.flatten().flatten().to_numpy(zero_copy_only=False).reshape(-1, column.type.value_type.list_size)
    offsets = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    # A sliced array keeps its parent's offsets.
    return packed_NW, offsets - offsets[0]


def _column(field: pa.Field, values_NW: np.ndarray, offsets: np.ndarray) -> pa.Array:
    rows = pa.FixedSizeListArray.from_arrays(pa.array(values_NW.reshape(-1)), values_NW.shape[1])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), rows).cast(field.type)


def read_codec(location: str, digest: str) -> Codec:
    """Read a codec by digest; raise ValueError if the file is missing or has another codec."""
    from diffretriever.vectors.product import Codec

    try:
        codec = Codec.from_bytes(read_bytes(location))
    except FileNotFoundError:
        raise ValueError(f"{location} is missing, so the index cannot be read: restore it") from None
    except ValueError as error:
        raise ValueError(f"{location}: {error}") from None
    if codec.digest != digest:
        raise ValueError(f"{location} contains another codec, {codec.digest}: restore the original file")
    return codec


_load = lru_cache(maxsize=4)(read_codec)
