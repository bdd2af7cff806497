"""A retriever's config, compared with the training of its adapter.

Our training leaves a manifest in the adapter's folder; the authors' leaves `retriever_config.json` or one like it, with
the prompt as token ids. A retriever that frames its texts or places its slots otherwise runs, and gives vectors that
the adapter was never trained for.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from diffretriever.backbones.checkpoint import read_json
from diffretriever.encoders.preparer import Preparer, PromptedPreparer
from diffretriever.files import understood
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.retriever import ASKED_BY, BackboneRetriever, MaskedRetriever, has_slots
from diffretriever.schemas.training import MANIFEST_FILE

_FREE = ASKED_BY | frozenset(
    {
        "backbone",
        "budget",
        "clusters",
        "confidence",
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
"""File in an adapter's folder → the method whose training writes it; the second is the first's old name."""


def check_trained_for(config: BackboneRetriever, preparer: Preparer, folder: Path) -> None:
    """Compare `config` with the files about its training in an adapter's `folder`, if there are any.

    Another budget or number of steps is a `UserWarning`, another method, mask token, tail or prompt a `ValueError`.
    """
    if (folder / MANIFEST_FILE).is_file():
        _check_manifest(config, folder / MANIFEST_FILE)
    file = next((folder / name for name in _METHODS if (folder / name).is_file()), None)
    if file is None:
        return
    trained = {name: value for name, value in read_json(file).items() if value is not None}
    if _METHODS[file.name] != config.method:
        raise ValueError(
            f"{file}: this adapter (model_type {trained.get('model_type')!r}) was trained for method "
            f"'{_METHODS[file.name]}', the retriever's is '{config.method}': use the former, or another adapter."
        )
    if has_slots(config):
        assert isinstance(preparer, PromptedPreparer), "a masked config makes a masked preparer"
        _check_masked(trained, file, config, preparer)


def trained_fields(config: BackboneRetriever) -> dict[str, Any]:
    """Return the fields, as JSON values, in which a retriever must be as its adapter was trained."""
    return config.model_dump(mode="json", exclude=set(_FREE))


def _check_manifest(config: BackboneRetriever, file: Path) -> None:
    with understood(file, "fetch the adapter again"):
        trained = dict(read_json(file)["retriever"])
    ours = trained_fields(config)
    _check_same(file, {name: (trained.get(name), value) for name, value in ours.items()})
    if has_slots(config):
        # With one pass, schedule and confidence mean nothing.
        passes = ("steps",) if trained.get("steps") == config.steps == 1 else ("steps", "schedule", "confidence")
        _warn(file, {name: (trained.get(name), getattr(config, name)) for name in passes})


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
    both_have = {name: (trained[name], value) for name, value in ours.items() if name in trained}
    _check_same(file, both_have, preparer.vocabulary.tokenizer.decode)
    both = trained.get("n_gen_tokens")
    query = trained.get("n_gen_q_tokens") or both or config.budget.query
    passage = trained.get("n_gen_p_tokens") or both or config.budget.passage
    steps = trained.get("num_denoise_steps") or config.steps
    _warn(file, {"budget": (Budget(query, passage), config.budget), "steps": (steps, config.steps)})


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


def _warn(file: Path, fields: Mapping[str, tuple[Any, Any]]) -> None:
    for name, (theirs, ours) in fields.items():
        if theirs not in (None, ours):
            warnings.warn(
                f"{file}: the adapter was trained with {name} {theirs}; the retriever runs with {ours}.",
                UserWarning,
                stacklevel=5,
            )
