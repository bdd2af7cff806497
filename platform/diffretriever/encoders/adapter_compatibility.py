"""Checks that an adapter was trained for a retriever's config.

Otherwise a retriever with another prompt or slot layout would run, and encode wrong vectors. Other lengths or content
words are allowed, and reported. Our training writes a manifest to the adapter's folder; the authors' code writes
`retriever_config.json` or a similar file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from diffretriever.backbones.checkpoint import read_json
from diffretriever.core.files import understood
from diffretriever.encoders.preparer import Preparer, PromptedPreparer
from diffretriever.schemas.base import flat_fields
from diffretriever.schemas.retriever import ASKED_BY, BackboneRetriever, MaskedRetriever, has_slots
from diffretriever.schemas.training import MANIFEST_FILE

_REPORTED = frozenset({"content_words", "text"})
"""Fields that may differ from training, and are then reported."""
_MAY_DIFFER = (ASKED_BY | _REPORTED) | frozenset(
    {
        "backbone",
        "budget",
        "clusters",
        "language",
        "max_tokens",
        "mean_share",
        "schedule",
        "sparse_rounding",
        "sparse_topk",
        "steps",
        "stop_truncation",
    }
)
"""Fields that may differ from training, because the backbone's input does not depend on them."""
_AUTHORS_FILES = {
    "retriever_config.json": "masked",
    "matryoshka_config.json": "masked",
    "ar_retriever_config.json": "generated",
    "diffembed_config.json": "pooled",
    "repllama_config.json": "pooled",
}
"""The authors' file in an adapter's folder → the method that it belongs to."""


def check_adapter_fits(config: BackboneRetriever, preparer: Preparer, folder: Path) -> list[str]:
    """Check `config` against the training files in the adapter's `folder`, if there are any.

    Returns a notice for each file with other lengths or content words than those of `config`.

    Raises:
        ValueError: Method, mask token, tail or prompt differ from training. Budget and steps may differ.
    """
    manifest, notices = folder / MANIFEST_FILE, []
    used = flat_fields(config.model_dump(mode="json", include=set(_REPORTED)))
    if manifest.is_file():
        with understood(manifest, "fetch the adapter again"):
            trained = dict(read_json(manifest)["retriever"])
        _check_same(manifest, {name: (trained.get(name), ours) for name, ours in trained_fields(config).items()})
        theirs = flat_fields({name: value for name, value in trained.items() if name in _REPORTED})
        notices += _notices(manifest, {name: (theirs[name], ours) for name, ours in used.items() if name in theirs})
    for name, method in _AUTHORS_FILES.items():
        file = folder / name
        if not file.is_file():
            continue
        trained = read_json(file)
        if method != config.method:
            raise ValueError(
                f"{file}: this adapter (model_type {trained.get('model_type')!r}) was trained for method '{method}', "
                f"but the retriever has method '{config.method}': set method: {method}, or use another adapter"
            )
        if has_slots(config):
            assert isinstance(preparer, PromptedPreparer), "a masked config makes a masked preparer"
            _check_authors_fields(trained, file, config, preparer)
            # Of passages: the file has no length of queries.
            if trained.get("max_length") is not None:
                lengths = (trained["max_length"], config.text.max_passage_tokens)
                notices += _notices(file, {"text.max_passage_tokens": lengths})
    return notices


def trained_fields(config: BackboneRetriever) -> dict[str, Any]:
    """Return the fields, as JSON values, that must be equal in training and use."""
    return config.model_dump(mode="json", exclude=set(_MAY_DIFFER))


def _check_authors_fields(
    trained: Mapping[str, Any], file: Path, config: MaskedRetriever, preparer: PromptedPreparer
) -> None:
    for name in ("use_k_adapter", "use_k_pre_encoder"):
        if trained.get(name):
            raise ValueError(f"{file}: {name} is true: adapters that choose the number of slots are not supported")
    if trained.get("normalize") is False:
        raise ValueError(f"{file}: normalize is false: only adapters trained on normalised vectors are supported")
    ours: dict[str, Any] = {"mask_token_id": preparer.vocabulary.mask_token_id, "n_tail": config.tail_length}
    for side in ("query", "passage"):
        frame = preparer.frame(side, config.max_vectors(side))
        ours |= {f"{side}_prefix_ids": frame.left, f"{side}_suffix_ids": frame.right}
    both_have = {name: (trained[name], value) for name, value in ours.items() if trained.get(name) is not None}
    _check_same(file, both_have, preparer.vocabulary.tokenizer.decode)


def _check_same(
    file: Path, fields: Mapping[str, tuple[Any, Any]], decode: Callable[[list[int]], str] | None = None
) -> None:
    if differences := _differences(fields, decode):
        raise ValueError(
            f"{file}: the adapter was trained with {differences}: set the retriever's prompt, tail_length "
            "and other fields to the trained ones, use the backbone that it was trained on, or another adapter"
        )


def _notices(file: Path, fields: Mapping[str, tuple[Any, Any]]) -> list[str]:
    differences = _differences(fields)
    if not differences:
        return []
    return [f"{file}: the adapter was trained with {differences}, which can lower quality: set the trained values"]


def _differences(fields: Mapping[str, tuple[Any, Any]], decode: Callable[[list[int]], str] | None = None) -> str:
    differences = []
    for name, pair in fields.items():
        if pair[0] != pair[1]:
            theirs, ours = (decode(value) if decode and isinstance(value, list) else value for value in pair)
            differences.append(f"{name} {theirs!r} (here {ours!r})")
    return ", ".join(differences)
