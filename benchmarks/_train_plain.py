"""Fine-tuning as it is most simply written with transformers and PEFT: the Trainer, a collator, one loss function.

Sequences, positions of slots and content words are those of this platform; all else is plain: logits of the whole
vocabulary at the slots, impacts as rows as long as it, masked by the words of the text.

Legend: B texts, L padded length, K slots, H hidden size, V vocabulary, Q queries, P passages.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from peft import get_peft_model
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from torch.utils.data import SequentialSampler
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from benchmarks._train_data import Clock
from diffretriever.encoders.masked import MaskedEncoder
from diffretriever.encoders.preparer import PreparedText
from diffretriever.training.batches import Batches
from diffretriever.training.lora import lora_config
from diffretriever.training.seeds import seed_torch
from schemas.training import Recipe


class Item(NamedTuple):
    """A query with its passages, its positive first."""

    query: PreparedText
    passages: list[PreparedText]


def items_of(batches: Batches, each: int) -> list[Item]:
    """Return all queries of a training, in order, with `each` passages."""
    parts = [part for step in range(batches.total_steps) for part in batches.parts(step)]
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
    parts = 1 if recipe.negatives == "cached" else recipe.batch_queries // recipe.queries_per_device
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
    batch = encoder.masked_batch(texts, torch.zeros(len(texts), 0, dtype=torch.int64))
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
        warmup_steps=recipe.warmup,
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.clip_norm,
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
