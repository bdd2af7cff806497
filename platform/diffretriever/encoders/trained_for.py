"""A retriever's config, compared with the training of its adapter.

Our training leaves a manifest in the adapter's folder; the authors' leaves `retriever_config.json` or one like it, with
the prompt as token ids. A retriever that frames its texts or places its slots otherwise runs, and gives vectors that
the adapter was never trained for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from diffretriever.backbones.checkpoint import read_json
from diffretriever.core.files import understood
from diffretriever.encoders.preparer import Preparer, PromptedPreparer
from diffretriever.schemas.retriever import ASKED_BY, BackboneRetriever, MaskedRetriever, has_slots
from diffretriever.schemas.training import MANIFEST_FILE

_FREE = ASKED_BY | frozenset(
    {
        "backbone",
        "budget",
        "clusters",
        "content_words",
        "max_tokens",
        "mean_share",
        "schedule",
        "sparse_rounding",
        "sparse_topk",
        "steps",
        "stop_truncation",
        "text",
    }
)
"""Fields that may differ from training: the backbone's input does not depend on them."""
_METHODS = {
    "retriever_config.json": "masked",
    "matryoshka_config.json": "masked",
    "ar_retriever_config.json": "generated",
    "diffembed_config.json": "pooled",
    "repllama_config.json": "pooled",
}
"""File of the authors in an adapter's folder → the method whose training writes it."""


def check_trained_for(config: BackboneRetriever, preparer: Preparer, folder: Path) -> None:
    """Compare `config` with the files about its training in an adapter's `folder`, if there are any.

    Another budget or number of steps is allowed. Another method, mask token, tail or prompt is a `ValueError`.
    """
    manifest = folder / MANIFEST_FILE
    if manifest.is_file():
        with understood(manifest, "fetch the adapter again"):
            trained = dict(read_json(manifest)["retriever"])
        _check_same(manifest, {name: (trained.get(name), ours) for name, ours in trained_fields(config).items()})
    for name, method in _METHODS.items():
        file = folder / name
        if not file.is_file():
            continue
        trained = read_json(file)
        if method != config.method:
            raise ValueError(
                f"{file}: this adapter (model_type {trained.get('model_type')!r}) was trained for method '{method}', "
                f"the retriever's is '{config.method}': use the former, or another adapter."
            )
        if has_slots(config):
            assert isinstance(preparer, PromptedPreparer), "a masked config makes a masked preparer"
            _check_masked(trained, file, config, preparer)


def trained_fields(config: BackboneRetriever) -> dict[str, Any]:
    """Return the fields, as JSON values, in which a retriever must be as its adapter was trained."""
    return config.model_dump(mode="json", exclude=set(_FREE))


def _check_masked(trained: Mapping[str, Any], file: Path, config: MaskedRetriever, preparer: PromptedPreparer) -> None:
    for name in ("use_k_adapter", "use_k_pre_encoder"):
        if trained.get(name):
            raise ValueError(f"{file}: {name} is true: adapters that choose the number of slots are not supported.")
    if trained.get("normalize") is False:
        raise ValueError(f"{file}: normalize is false: only adapters trained on normalised vectors are supported.")
    ours: dict[str, Any] = {"mask_token_id": preparer.vocabulary.mask_token_id, "n_tail": config.tail_length}
    for side in ("query", "passage"):
        frame = preparer.frame(side, config.max_vectors(side))
        ours |= {f"{side}_prefix_ids": frame.left, f"{side}_suffix_ids": frame.right}
    both_have = {name: (trained[name], value) for name, value in ours.items() if trained.get(name) is not None}
    _check_same(file, both_have, preparer.vocabulary.tokenizer.decode)


def _check_same(
    file: Path, fields: Mapping[str, tuple[Any, Any]], decode: Callable[[list[int]], str] | None = None
) -> None:
    """Raise ValueError if trained values differ from the retriever's; `decode` makes a text of token ids."""
    shown = []
    for name, pair in fields.items():
        if pair[0] != pair[1]:
            theirs, ours = (decode(value) if decode and isinstance(value, list) else value for value in pair)
            shown.append(f"{name} {theirs!r} (here {ours!r})")
    if shown:
        raise ValueError(
            f"{file}: the adapter was trained with {', '.join(shown)}: set the retriever's prompt, tail_length and "
            "other fields to the trained ones, use the backbone that it was trained on, or another adapter"
        )
