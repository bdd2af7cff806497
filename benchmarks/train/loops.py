"""What the train benchmark runs, each loop in a process of its own: our training, and one by transformers and PEFT.

The second is written as it most simply is: the Trainer, a collator, one loss function. Sequences, positions of slots
and content words are those of this platform; all else is plain: logits of the whole vocabulary at the slots, impacts as
rows as long as it, masked by the words of the text.

Legend: B texts, L padded length, K slots, H hidden size, V vocabulary, Q queries, P passages.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from peft import get_peft_model
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from torch.utils.data import SequentialSampler
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from benchmarks.measuring import peak_mb, serve_child
from benchmarks.train.figures import Run, Setting
from diffretriever.backbones.flops import Matrices
from diffretriever.collections import Passage, open_collection
from diffretriever.encoders import load_encoder, load_preparer
from diffretriever.encoders.masked import MaskedEncoder
from diffretriever.encoders.preparer import PreparedText
from diffretriever.presets import load_retriever
from diffretriever.schemas.retriever import MaskedRetriever
from diffretriever.schemas.training import WARMUP, Recipe
from diffretriever.training.adapters import lora_config
from diffretriever.training.batches import Batches
from diffretriever.training.data.examples import Group, passage_key
from diffretriever.training.data.seeds import seed_torch
from diffretriever.training.data.training_set import TrainingSet
from diffretriever.training.engine import CLIP_NORM, WEIGHT_DECAY
from diffretriever.training.gather import Workers
from diffretriever.training.session import describe_training, open_session
from diffretriever.training.trainable import with_training_lengths

_ALONE = Workers(0, 1)
_QUERY_WORDS = 8
"""Of a passage's beginning, which are its query."""


def ours(setting: dict[str, Any]) -> Run:
    """This platform's training: `open_session` and `Trainer.run`, which every worker of a job calls."""
    wanted = Setting.model_validate(setting)
    data, retriever = data_of(wanted), _retriever(wanted)
    manifest = describe_training(retriever, wanted.recipe, data, 1, wanted.device)
    session = open_session(data, manifest, wanted.device, _ALONE)
    backbone = session.encoder.backbone
    clock = Clock(backbone.device)
    losses = []
    for metrics in session.trainer.run():
        clock.tick()
        losses.append(metrics.loss)
    lengths = _lengths(session.trainer.batches)
    return Run(
        tokens_per_second=lengths.sum() / clock.seconds,
        tokens_per_cpu_second=lengths.sum() / clock.cpu_seconds,
        peak_mb=_peak_mb(backbone.device),
        losses=losses,
        flops_per_second=Matrices.of(backbone).training_flops(lengths) / clock.seconds,
    )


def plain(setting: dict[str, Any]) -> Run:
    """The Trainer of transformers on the same texts in the same batches, which are ready before it starts."""
    wanted = Setting.model_validate(setting)
    retriever = _retriever(wanted)
    preparer = load_preparer(with_training_lengths(retriever, wanted.recipe))
    batches = Batches(data_of(wanted), preparer, wanted.recipe, _ALONE)
    items = items_of(batches, 1 + wanted.recipe.hard_negatives)
    # Not packed: its texts are padded.
    padded = retriever.backbone.model_copy(update={"attention": "sdpa"})
    encoder = load_encoder(retriever.model_copy(update={"backbone": padded}), wanted.device)
    assert isinstance(encoder, MaskedEncoder)
    clock = Clock(encoder.facts.device)
    losses = train_plainly(encoder, items, wanted.recipe, clock)
    tokens = _lengths(batches).sum()
    return Run(
        tokens_per_second=tokens / clock.seconds,
        tokens_per_cpu_second=tokens / clock.cpu_seconds,
        peak_mb=_peak_mb(encoder.facts.device),
        losses=losses,
    )


def _retriever(wanted: Setting) -> MaskedRetriever:
    torch.set_num_threads(1)
    retriever = load_retriever(str(wanted.retriever))
    assert isinstance(retriever, MaskedRetriever), "slots are what is measured"
    return retriever


def _lengths(batches: Batches) -> np.ndarray:
    """Tokens of each text of all measured steps."""
    parts = [part for step in range(1, batches.total_steps) for part in batches.micro_batches(step)]
    return np.concatenate([part.lengths for part in parts])


def _peak_mb(device: torch.device) -> float:
    return torch.cuda.max_memory_allocated(device) / 1e6 if device.type == "cuda" else peak_mb()


def data_of(setting: Setting) -> DistinctPassages:
    """Return as many queries as the steps take."""
    recipe = setting.recipe
    assert recipe.max_steps is not None, "a benchmark ends"
    return DistinctPassages(setting.collection, recipe.max_steps * recipe.batch_queries, 1 + recipe.hard_negatives)


class DistinctPassages(TrainingSet):
    """Queries that are the first words of their passages; no passage comes twice, so none is masked."""

    digest = "of the benchmark"

    def __init__(self, collection: str, queries: int, each: int) -> None:
        """Take `queries` x `each` passages, spread over the collection."""
        records = (record for record in open_collection(collection).records() if isinstance(record, Passage))
        passages = list({passage_key(passage): passage for passage in records}.values())
        if len(passages) < queries * each:
            raise SystemExit(
                f"{collection} has {len(passages)} passages, and {queries} queries with {each} each need "
                f"{queries * each}: lower --steps, --batch-queries or --hard-negatives"
            )
        places = np.arange(queries * each) * len(passages) // (queries * each)
        self._passages = [passages[place] for place in np.random.default_rng(0).permutation(places)]
        self._queries, self._each = queries, each

    def __len__(self) -> int:
        return self._queries

    def order(self, epoch: int, seed: int) -> np.ndarray:
        """Rows as they are."""
        return np.arange(self._queries)

    def group(self, row: int, *, epoch: int, negatives: int, seed: int) -> Group:
        """A row's own passages."""
        own = self._passages[row * self._each : (row + 1) * self._each]
        query = " ".join((own[0].text or own[0].title).split()[:_QUERY_WORDS])
        return Group(f"q{row}", query, tuple(own))


class Clock:
    """Ends of steps, once what they have begun on the device is done."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._ends: list[tuple[float, float]] = []

    def tick(self) -> None:
        """Note the end of a step."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._ends.append((time.perf_counter(), time.process_time()))

    @property
    def seconds(self) -> float:
        """From the end of the first step to that of the last."""
        return self._ends[-1][0] - self._ends[0][0]

    @property
    def cpu_seconds(self) -> float:
        """Of the processor in that time, on all threads of the process."""
        return self._ends[-1][1] - self._ends[0][1]


class Item(NamedTuple):
    """A query with its passages, its positive first."""

    query: PreparedText
    passages: list[PreparedText]


def items_of(batches: Batches, each: int) -> list[Item]:
    """Return all queries of a training, in order, with `each` passages."""
    parts = [part for step in range(batches.total_steps) for part in batches.micro_batches(step)]
    return [
        Item(query, part.passages[place * each : (place + 1) * each])
        for part in parts
        for place, query in enumerate(part.queries)
    ]


def train_plainly(encoder: MaskedEncoder, items: list[Item], recipe: Recipe, clock: Clock) -> list[float]:
    """Train to the end; return the loss of each step."""
    for module in encoder.backbone.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    # PEFT's and the Trainer's own use of what transformers deprecates.
    warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
    seed_torch("lora", recipe.seed)
    model = get_peft_model(encoder.backbone.model, lora_config(encoder.backbone, recipe))
    parts = recipe.batch_queries // recipe.queries_per_device
    with TemporaryDirectory() as folder:
        trainer = _PlainTrainer(
            model=model,
            args=_arguments(recipe, parts, folder, on_cpu=encoder.facts.device.type == "cpu"),
            train_dataset=items,
            data_collator=lambda of: _collate(of, encoder),
            callbacks=[_Ticks(clock)],
        )
        trainer.encoder, trainer.recipe, trainer.losses = encoder, recipe, []
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    losses = torch.stack(trainer.losses).reshape(-1, parts).mean(1)
    return [float(loss) for loss in losses]


class _PlainTrainer(Trainer):
    encoder: MaskedEncoder
    recipe: Recipe
    losses: list[Tensor]

    def _get_train_sampler(self, train_dataset: Any = None) -> SequentialSampler:
        return SequentialSampler(self.train_dataset)

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Tensor:  # noqa: FBT001, FBT002
        q_QKH, q_QK, q_QV = self._encode(model, inputs["queries"])
        p_PKH, p_PK, p_PV = self._encode(model, inputs["passages"])
        products_QPKK = torch.einsum("qih,pjh->qpij", q_QKH, p_PKH).masked_fill(~p_PK[None, :, None], -torch.inf)
        best_QPK = products_QPKK.amax(3) * q_QK[:, None]
        dense_QP = best_QPK.sum(2) / q_QK.sum(1)[:, None] / self.recipe.temperature
        labels_Q = torch.arange(len(q_QK), device=dense_QP.device) * (1 + self.recipe.hard_negatives)
        loss = cross_entropy(dense_QP, labels_Q) + cross_entropy(q_QV @ p_PV.T, labels_Q)
        self.losses.append(loss.detach())
        return loss

    def _encode(self, model: Any, texts: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Vectors [B, K, H], which of them there are [B, K], and impacts [B, V]."""
        output = model.get_base_model().base_model(
            input_ids=texts["ids"], attention_mask=texts["mask"], position_ids=texts["positions"], use_cache=False
        )
        hidden_BLH = output.last_hidden_state
        slots_BKH = hidden_BLH.gather(1, texts["columns"][..., None].expand(-1, -1, hidden_BLH.shape[2]))
        valid_BK = texts["valid"]
        backbone = self.encoder.backbone
        logits_BKV = backbone.output_projection(backbone.head_input(slots_BKH)).float()
        strongest_BV = logits_BKV.masked_fill(~valid_BK[..., None], -torch.inf).amax(1)
        impacts_BV = torch.log1p(torch.relu(strongest_BV)) * texts["words"]
        return normalize(slots_BKH.float(), dim=-1), valid_BK, impacts_BV


class _Ticks(TrainerCallback):
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._clock.tick()


def _collate(items: Sequence[Item], encoder: MaskedEncoder) -> dict[str, dict[str, Tensor]]:
    return {
        "queries": _padded([item.query for item in items], encoder),
        "passages": _padded([passage for item in items for passage in item.passages], encoder),
    }


def _padded(texts: list[PreparedText], encoder: MaskedEncoder) -> dict[str, Tensor]:
    batch = encoder.masked_batch(texts)
    words_BV = torch.zeros(len(texts), encoder.backbone.vocab_size, dtype=torch.bool)
    for row, text in enumerate(texts):
        words_BV[row, torch.from_numpy(text.content_ids).long()] = True
    positions_BL = batch.position_ids_BL
    if positions_BL is None:
        positions_BL = (batch.mask_BL.cumsum(1) - 1).clamp(min=0)
    return {
        "ids": batch.ids_BL,
        "mask": batch.mask_BL.bool(),
        "positions": positions_BL,
        "columns": batch.columns_BK,
        "valid": batch.valid_BK,
        "words": words_BV,
    }


def _arguments(recipe: Recipe, parts: int, folder: str, *, on_cpu: bool) -> TrainingArguments:
    return TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=recipe.batch_queries // parts,
        gradient_accumulation_steps=parts,
        max_steps=recipe.max_steps or -1,
        learning_rate=recipe.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=WARMUP,
        weight_decay=WEIGHT_DECAY,
        max_grad_norm=CLIP_NORM,
        activation_checkpointing=recipe.gradient_checkpointing,
        activation_checkpointing_kwargs={"use_reentrant": False},
        seed=recipe.seed,
        use_cpu=on_cpu,
        dataloader_pin_memory=not on_cpu,
        remove_unused_columns=False,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )


if __name__ == "__main__":
    serve_child({f.__name__: f for f in (ours, plain)})
