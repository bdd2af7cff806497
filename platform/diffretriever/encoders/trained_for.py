"""What an adapter was trained for, held against the retriever that is to run it.

Our own training leaves a manifest in the adapter's folder; the authors' leaves `retriever_config.json` or one like it,
with the prompt as token ids. A retriever that frames its texts or places its slots otherwise runs, and
gives vectors that the adapter was never trained for.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffretriever.backbones.checkpoint import read_json
from diffretriever.backbones.source import resolve_adapter
from diffretriever.files import understood
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.retriever import ASKED_BY, BackboneRetriever, MaskedRetriever, Side, has_slots
from diffretriever.schemas.training import MANIFEST_FILE

if TYPE_CHECKING:
    from diffretriever.encoders.masked import MaskedPreparer
    from diffretriever.encoders.preparer import Preparer

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
        "slot_view",
        "sparse_rounding",
        "sparse_topk",
        "steps",
        "stop_truncation",
        "text",
    }
)
"""What may differ from training: what is read and stored, not what the backbone sees of a text."""
_METHODS = {
    "retriever_config.json": "masked",
    "matryoshka_config.json": "masked",
    "ar_retriever_config.json": "generated",
    "diffembed_config.json": "pooled",
    "repllama_config.json": "pooled",
}
"""File in an adapter's folder → the method whose training writes it; the second is the first's old name."""
_PARTS: tuple[tuple[str, Side, int], ...] = (
    ("query_prefix_ids", "query", 0),
    ("query_suffix_ids", "query", 1),
    ("passage_prefix_ids", "passage", 0),
    ("passage_suffix_ids", "passage", 1),
)
"""Field → the side it is of, and whether it stands left (0) or right (1) of the text."""


def check_trained_for(config: BackboneRetriever, preparer: Preparer) -> None:
    """Hold `config` against what the adapter's folder says of its training, where it says anything.

    Another number of steps than trained is a `UserWarning`, and so is another budget than the authors'; the config's
    count.

    Raises:
        ValueError: The adapter cannot be fetched, was trained for another method, needs what is not supported here,
            or was trained with another mask token, tail, prompt or place of the slots. Names file and field, and the
            fix.
    """
    place = config.backbone
    if place.adapter is None:
        return
    folder = resolve_adapter(place.adapter, place.adapter_revision, weights=False)
    _check_manifest(config, folder)
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
        _check_masked(trained, file, config, preparer)  # type: ignore[arg-type] # a masked config makes a masked preparer


def trained_fields(config: BackboneRetriever) -> dict[str, Any]:
    """Return the fields, as JSON values, in which a retriever must be as its adapter was trained."""
    return config.model_dump(mode="json", exclude=set(_FREE))


def _check_manifest(config: BackboneRetriever, folder: Path) -> None:
    """Hold `config` against the manifest that our training wrote, if there is one."""
    file = folder / MANIFEST_FILE
    if not file.is_file():
        return
    with understood(file, "fetch the adapter again"):
        trained = dict(read_json(file)["retriever"])
    for name, value in trained_fields(config).items():
        if trained.get(name) != value:
            raise ValueError(
                f"{file}: the adapter was trained with {name} {trained.get(name)!r}, the retriever has {value!r}: use "
                "the former, or another adapter"
            )
    if has_slots(config):
        _warn_of_passes(trained, file, config)


def _check_masked(trained: dict[str, Any], file: Path, config: MaskedRetriever, preparer: MaskedPreparer) -> None:
    for name in ("use_k_adapter", "use_k_pre_encoder"):
        if trained.get(name):
            raise ValueError(f"{file}: {name} is true: adapters that choose the number of slots are not supported.")
    if trained.get("normalize") is False:
        raise ValueError(f"{file}: normalize is false: only adapters trained on normalised vectors are supported.")
    mask = preparer.vocabulary.mask_token_id
    if trained.get("mask_token_id", mask) != mask:
        raise ValueError(
            f"{file}: mask_token_id is {trained['mask_token_id']}, the backbone's is {mask}: "
            "is `backbone.source` the model that the adapter was trained on?"
        )
    tail = trained.get("n_tail", config.tail_length)
    if tail != config.tail_length:
        raise ValueError(
            f"{file}: n_tail is {tail}, the retriever's tail_length is {config.tail_length}: set `tail_length: {tail}`."
        )
    _warn_of_differences(trained, file, config)
    _check_prompt(trained, file, config, preparer)


def _warn_of_differences(trained: Mapping[str, Any], file: Path, config: MaskedRetriever) -> None:
    both = trained.get("n_gen_tokens")
    query = trained.get("n_gen_q_tokens") or both or config.budget.query
    passage = trained.get("n_gen_p_tokens") or both or config.budget.passage
    steps = trained.get("num_denoise_steps") or config.steps
    for name, theirs, ours in (("budget", Budget(query, passage), config.budget), ("steps", steps, config.steps)):
        if theirs != ours:
            _warn(file, f"{name} {theirs}", str(ours))


def _warn_of_passes(trained: Mapping[str, Any], file: Path, config: MaskedRetriever) -> None:
    """Warn where slots are filled otherwise than in our training; with one pass there is nothing to choose."""
    passes = ("steps",) if trained.get("steps") == config.steps == 1 else ("steps", "schedule", "confidence")
    for name in passes:
        theirs, ours = trained.get(name), getattr(config, name)
        if theirs not in (None, ours):
            _warn(file, f"{name} {theirs}", str(ours))
            return


def _warn(file: Path, theirs: str, ours: str) -> None:
    warnings.warn(
        f"{file}: the adapter was trained with {theirs}; the retriever's config asks for {ours}, which is what runs.",
        UserWarning,
        stacklevel=5,
    )


def _check_prompt(trained: Mapping[str, Any], file: Path, config: MaskedRetriever, preparer: MaskedPreparer) -> None:
    ours = _frames(config, preparer)
    theirs = {name: list(trained[name]) for name in ours if name in trained}
    differing = [name for name, ids in theirs.items() if ids != ours[name]]
    if not differing:
        return
    decode = preparer.vocabulary.tokenizer.decode
    shown = "".join(
        f"\n  {name}\n    trained: {decode(theirs[name])!r}\n    here:    {decode(ours[name])!r}" for name in differing
    )
    raise ValueError(
        f"{file}: the adapter was trained with another prompt than this retriever builds:{shown}\n"
        "set the retriever's `prompt` to build the trained one, or check the budget and the backbone's tokenizer"
    )


def _frames(config: MaskedRetriever, preparer: MaskedPreparer) -> dict[str, list[int]]:
    return {name: preparer.frame_ids(side, config.max_vectors(side))[where] for name, side, where in _PARTS}
