"""One worker's training, whoever started it: which it is, what it needs, and the work to its end.

`describe_training` finds out before any weights are loaded; `work` takes up a checkpoint, trains, validates and leaves
checkpoints.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from peft import LoraConfig

from diffretriever.backbones.checkpoint import Checkpoint
from diffretriever.backbones.device import resolve_device, resolve_dtype
from diffretriever.backbones.source import resolve_source
from diffretriever.encoders import load_encoder, load_preparer
from diffretriever.encoders.base import BackboneEncoder
from diffretriever.schemas.retriever import (
    TRAINABLE_METHODS,
    BackboneRetriever,
    RetrieverConfig,
    has_slots,
    is_trainable,
)
from diffretriever.schemas.training import OWN_TOKENS, Recipe, TrainingManifest, TrainJob
from diffretriever.scoring.sparse import idf_roots
from diffretriever.training.adapters import (
    ADAPTER,
    StartingValues,
    attach_lora,
    describe_start,
    read_start,
    save_adapter,
    trainable_parameters,
)
from diffretriever.training.batches import Batches, TrainingData
from diffretriever.training.data.examples import passage_key
from diffretriever.training.engine import open_engine
from diffretriever.training.gather import Workers
from diffretriever.training.loop import Record, Trainer
from diffretriever.training.teacher import open_teacher, teacher_config
from diffretriever.training.trainable import TrainableEncoder, with_training_lengths

if TYPE_CHECKING:
    from diffretriever.encoders.masked import MaskedEncoder

_PASSAGES_COUNTED = 20_000
"""Passages whose words are counted for weights of words; they take some ten seconds."""
_ROWS_TRIED = 256
"""Rows whose negatives are filled up before a training begins: a set with too few passages is hardly larger."""

Log = Callable[[Record], None]
"""Takes the figures of a step or a validation."""

SaveCheckpoint = Callable[[int, Path], None]
"""Takes a step and a folder with this worker's files of its checkpoint, which may be none."""


def describe_training(
    retriever: BackboneRetriever, recipe: Recipe, data: TrainingData, workers: int, device: str
) -> TrainingManifest:
    """Return the manifest of a training that has not begun, without loading weights; run it where training will.

    Where the retriever has an adapter, training goes on from that.

    Args:
        retriever: what is trained.
        recipe: how.
        data: the training set.
        workers: how many will train.
        device: of each of them.

    Raises:
        ValueError: the backbone cannot be found, or the training set is too small or lacks a teacher's scores.
    """
    _check_negatives(data, recipe)
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


def _check_negatives(data: TrainingData, recipe: Recipe) -> None:
    """Raise ValueError where passages are too few to fill up a query's negatives: before workers start, not in each."""
    for row in range(min(len(data), _ROWS_TRIED)):
        data.group(row, epoch=0, negatives=recipe.hard_negatives, seed=recipe.seed)


def _check_teacher(data: TrainingData, recipe: Recipe) -> None:
    """Raise ValueError where a distillation has nothing to learn from."""
    if recipe.distillation == "none" or recipe.teacher == OWN_TOKENS or teacher_config(recipe) is not None:
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
    if not is_trainable(retriever):
        methods = ", ".join(TRAINABLE_METHODS)
        raise ValueError(f"the {retriever.method} method cannot be trained here: take one of {methods}")
    if has_slots(retriever) and retriever.stop_truncation != "none":
        raise ValueError(
            "training reads all slots: set stop_truncation to none, and change it for searching if you like"
        )
    if has_slots(retriever) and retriever.adapter_on == "slots" and recipe.gradient_checkpointing:
        raise ValueError("adapter_on: slots does not go with gradient checkpointing: set --no-gradient-checkpointing")
    if recipe.teacher == OWN_TOKENS and not (
        has_slots(retriever) and retriever.adapter_on == "slots" and retriever.steps == 1
    ):
        raise ValueError(
            f"teacher: {OWN_TOKENS} is for slots filled in one pass by an adapter that leaves the text's states as "
            "they are: set the retriever's adapter_on to slots and steps to 1, or name a retriever"
        )
    if not retriever.has_query_budget and (recipe.query_budgets or recipe.passage_budgets):
        raise ValueError(f"the {retriever.method} method has no slots: leave --query-budgets and --passage-budgets out")
    for name, is_asked in (("token_head", recipe.token_head), ("word_weights", recipe.word_weights != "none")):
        if is_asked and "sparse" not in retriever.modes:
            raise ValueError(
                f"{name} is for sparse scores, which the {retriever.method} method does not have: leave it out"
            )
    _check_slot_embeddings(retriever, recipe)
    return retriever


def _check_slot_embeddings(retriever: BackboneRetriever, recipe: Recipe) -> None:
    if not recipe.slot_embeddings:
        return
    if not has_slots(retriever):
        raise ValueError(f"slot_embeddings: the {retriever.method} method has no slots: leave it out")
    budget = retriever.budget
    largest = max((budget.query, budget.passage, *recipe.query_budgets, *recipe.passage_budgets))
    if recipe.slot_embeddings < largest:
        raise ValueError(f"slot_embeddings: {recipe.slot_embeddings}, but texts have up to {largest} slots: raise it")


def work(
    job: TrainJob,
    manifest: TrainingManifest,
    data: TrainingData,
    *,
    device: str,
    workers: Workers,
    resume: Path | None,
    log: Log,
    save_checkpoint: SaveCheckpoint,
) -> None:
    """Train to the end, on one worker of several.

    Args:
        job: as the user gave it.
        manifest: of this training.
        data: the training set.
        device: of this worker.
        workers: its place.
        resume: checkpoint to go on from, whose files are all there; None to begin.
        log: called on the first worker with the figures of each step and validation.
        save_checkpoint: called on every worker at each checkpoint, the last one at the end.
    """
    torch.set_num_threads(job.threads_per_worker)
    session = open_session(data, manifest, device, workers)
    if resume is not None:
        session.trainer.load(resume)
    validate = _validation(job, session, log) if workers.rank == 0 else _nothing
    if session.trainer.step == 0:
        validate()
    for metrics in session.trainer.run():
        is_last = metrics.step == manifest.total_steps
        if workers.rank == 0:
            log(asdict(metrics))
        if is_last or (job.validate_every and metrics.step % job.validate_every == 0):
            validate()
        if is_last or metrics.step % job.checkpoint_every == 0:
            _save(session, workers, save_checkpoint)


def _validation(job: TrainJob, session: Session, log: Log) -> Callable[[], None]:
    if job.validation is None:
        return _nothing
    from diffretriever.training.validation import Validator

    validator = Validator(job.validation, job.validation_split)

    def validate() -> None:
        measured = validator.measure(session.encoder)
        log({"step": session.trainer.step} | {f"validation/{mode}": value for mode, value in measured.items()})

    return validate


def _nothing() -> None:
    return


def _save(session: Session, workers: Workers, save_checkpoint: SaveCheckpoint) -> None:
    with tempfile.TemporaryDirectory(prefix="checkpoint-") as place:
        folder = Path(place)
        session.trainer.save(folder)
        if workers.rank == 0:
            session.save_adapter(folder / ADAPTER)
        save_checkpoint(session.trainer.step, folder)


@dataclass(frozen=True)
class Session:
    """What a worker trains with."""

    encoder: BackboneEncoder
    """The retriever as it is used, over the backbone in training."""
    lora: LoraConfig
    trainer: Trainer
    manifest: TrainingManifest
    """As at the start, with the number of trainable parameters."""

    def save_adapter(self, target: Path) -> TrainingManifest:
        """Write the adapter as it is now; see `adapters.save_adapter`."""
        manifest = self.manifest.model_copy(update={"step": self.trainer.step})
        return save_adapter(self.encoder.backbone, self.lora, manifest, target)


def open_session(data: TrainingData, manifest: TrainingManifest, device: str, workers: Workers) -> Session:
    """Load the backbone, put a new adapter on it, with the values of the one to go on from, and get ready for step 0.

    Args:
        data: the training set.
        manifest: of the training.
        device: of this worker.
        workers: this one among all.

    Raises:
        ValueError: the backbone, that adapter or the teacher cannot be loaded, or the training set does not suffice.
    """
    recipe, retriever = manifest.recipe, check_trainable(manifest.retriever, manifest.recipe)
    encoder = cast("BackboneEncoder", load_encoder(retriever, device, trainable=True))
    # Modules are matched by the names that they have without an adapter.
    start = read_start(encoder.backbone, retriever.backbone, manifest.start)
    teacher = open_teacher(recipe, encoder.facts.hidden_size, device)
    preparer = load_preparer(with_training_lengths(retriever, recipe))
    batches = Batches(data, preparer, recipe, workers, None if teacher is None else teacher.preparer)
    readout = retriever.readout if has_slots(retriever) else "states"
    lora = attach_lora(encoder.backbone, recipe, readout, _word_weights(batches, encoder, recipe, start))
    if start is not None:
        start.put_on(encoder.backbone)
    if has_slots(retriever) and retriever.adapter_on == "slots":
        encoder.backbone.adapt_slots_only()
        cast("MaskedEncoder", encoder).keeps_tokens = recipe.teacher == OWN_TOKENS
    parameters = trainable_parameters(encoder.backbone)
    engine = open_engine(encoder.backbone.model, parameters, recipe, workers)
    trainer = Trainer(TrainableEncoder(encoder), batches, engine, recipe, workers, teacher)
    count = sum(parameter.numel() for parameter in parameters.values())
    return Session(encoder, lora, trainer, manifest.model_copy(update={"trainable": count}))


def _word_weights(
    batches: Batches, encoder: BackboneEncoder, recipe: Recipe, start: StartingValues | None
) -> torch.Tensor | None:
    """Return what impacts are multiplied with, float32 [V], if anything.

    Args:
        batches: the words of their first passages are counted.
        encoder: prepares them.
        recipe: whether there are weights of words.
        start: the adapter that training goes on from, whose weights are kept where it has any.
    """
    if recipe.word_weights == "none":
        return None
    if start is not None and start.slots is not None and start.slots.word_weights is not None:
        return start.slots.word_weights
    passages = {passage_key(passage): passage for passage in batches.passages(0, _PASSAGES_COUNTED)}.values()
    texts = encoder.preparer.prepare_passages([p.title for p in passages], [p.text for p in passages])
    return torch.from_numpy(idf_roots([text.content_ids for text in texts], encoder.backbone.vocab_size))
