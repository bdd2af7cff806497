"""What is known of a training before any weights are loaded: whether it can be, and its manifest."""

from __future__ import annotations

from diffretriever.backbones.checkpoint import Checkpoint
from diffretriever.backbones.device import resolve_device, resolve_dtype
from diffretriever.backbones.source import resolve_source
from diffretriever.encoders import load_preparer
from diffretriever.training.batches import Batches, TrainingData
from diffretriever.training.gather import Workers
from diffretriever.training.lengths import with_training_lengths
from diffretriever.training.start import describe_start
from diffretriever.training.teacher import teacher_config
from schemas.retriever import BackboneRetriever, MaskedRetriever, PooledRetriever, RetrieverConfig
from schemas.training import Recipe
from schemas.training_manifest import TrainingManifest


def describe_training(
    retriever: BackboneRetriever, recipe: Recipe, data: TrainingData, workers: int, device: str
) -> TrainingManifest:
    """Return the manifest of a training that has not begun, without loading weights; run it where training will.

    Where the retriever has an adapter, training goes on from that.

    Raises:
        ValueError: the backbone cannot be found, or the training set is too small or lacks a teacher's scores.
    """
    weights = Checkpoint.open(resolve_source(retriever.backbone.source, retriever.backbone.revision)).digest()
    dtype = resolve_dtype(retriever.backbone.dtype, resolve_device(device))
    start = describe_start(retriever.backbone, recipe)
    changes = {"dtype": str(dtype).removeprefix("torch."), "adapter": None, "adapter_revision": None}
    place = retriever.backbone.model_copy(update=changes)
    batches = Batches(data, load_preparer(with_training_lengths(retriever, recipe)), recipe, Workers(0, workers))
    _check_teacher(data, recipe)
    return TrainingManifest(
        retriever=retriever.model_copy(update={"backbone": place}),
        weights=weights,
        start=start,
        recipe=recipe,
        data=data.digest,
        examples=len(data),
        workers=workers,
        total_steps=batches.total_steps,
    )


def _check_teacher(data: TrainingData, recipe: Recipe) -> None:
    """Raise ValueError where a distillation has nothing to learn from."""
    if recipe.distillation == "none" or teacher_config(recipe) is not None:
        return
    rows = data.order(0, recipe.seed)[: recipe.batch_queries]
    groups = (data.group(int(row), epoch=0, negatives=recipe.hard_negatives, seed=recipe.seed) for row in rows)
    if any(group.scores is not None for group in groups):
        return
    raise ValueError(
        f"distillation: {recipe.distillation} needs a teacher's scores of a positive and {recipe.hard_negatives} "
        "negatives, and no query of the first batch has them: prepare the training set with scores, lower "
        "--hard-negatives, or name a --teacher"
    )


def check_trainable(retriever: RetrieverConfig, recipe: Recipe) -> BackboneRetriever:
    """Return the retriever if it can be trained.

    Raises:
        ValueError: it cannot, with the field and what to do.
    """
    if not isinstance(retriever, BackboneRetriever):
        raise ValueError(f"the {retriever.method} method cannot be trained here: take masked, generated or pooled")
    if isinstance(retriever, MaskedRetriever) and (retriever.steps > 1 or retriever.stop_truncation != "none"):
        raise ValueError(
            "training reads all slots in one pass: set steps to 1 and stop_truncation to none, and change them for "
            "searching if you like"
        )
    if isinstance(retriever, PooledRetriever) and (recipe.query_budgets or recipe.passage_budgets):
        raise ValueError("the pooled method has no slots: leave --query-budgets and --passage-budgets out")
    if recipe.token_head and "sparse" not in retriever.modes:
        raise ValueError("token_head is for sparse scores, which the pooled method does not have: leave it out")
    _check_slot_embeddings(retriever, recipe)
    return retriever


def _check_slot_embeddings(retriever: BackboneRetriever, recipe: Recipe) -> None:
    if not recipe.slot_embeddings:
        return
    if not isinstance(retriever, MaskedRetriever):
        raise ValueError(f"slot_embeddings: the {retriever.method} method has no slots: leave it out")
    budget = retriever.budget
    largest = max((budget.query, budget.passage, *recipe.query_budgets, *recipe.passage_budgets))
    if recipe.slot_embeddings < largest:
        raise ValueError(f"slot_embeddings: {recipe.slot_embeddings}, but texts have up to {largest} slots: raise it")
