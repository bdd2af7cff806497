"""Table 7: the recipe of fine-tuning, printed from the code's recipe `paper` and its presets."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import pandas as pd
import yaml

from diffretriever.evaluation.formats.pages import Table, TableCell
from diffretriever.presets import load_retriever
from diffretriever.schemas.base import Model
from diffretriever.schemas.retriever import has_slots, is_neural
from diffretriever.schemas.training import LORA_ALPHA, LORA_RANK, WARMUP, TrainJob
from diffretriever.studies.reproduction.exhibits.base import Exhibit, Findings, Shown
from diffretriever.studies.reproduction.sizes import FAMILIES, parameters_of, published_of, shapes_of

_STRATEGIES = {"ddp": "ddp", "deepspeed": "ZeRO-2"}
_CAPS = {"promptreps_train": "promptreps-qwen2.5-tuned", "promptreps_zero_shot": "promptreps-qwen2.5"}

_NOTES = (
    "The code's values are those of jobs/train.py --recipe paper and of the presets. Trainable parameters are counted "
    "from the shapes of the published checkpoints. The default recipe, plain, has the same values but for ddp, whose "
    "gradients are those of ZeRO-2, and the number of GPUs; the precision is bf16 wherever there is a GPU."
)


class Hyperparameter(Model):
    """A line of the table."""

    paper: str
    code: str | None = None
    """Key in `code_values`."""


class Hyperparameters(Exhibit):
    """Needs no results."""

    def lacks(self, findings: Findings) -> list[str]:
        """Return the values that the code has otherwise than the paper."""
        ours = code_values()
        return [
            f"{name}: the paper has {line.paper}, the code {ours[line.code]}"
            for lines in published_hyperparameters().values()
            for name, line in lines.items()
            if line.code is not None and ours[line.code] != line.paper
        ]

    def show(self, findings: Findings) -> Shown:
        """Show the paper's values beside the code's."""
        ours, rows = code_values(), []
        for group, lines in published_hyperparameters().items():
            for name, line in lines.items():
                own = "" if line.code is None else ours[line.code]
                rows.append([group, name, line.paper, TableCell(own, bold=bool(own) and own != line.paper)])
        groups = [row[0] for row in rows]
        table = Table(
            self.place,
            "Fine-tuning hyperparameters; bold where the code's differ.",
            pd.DataFrame(rows, columns=["", "Hyperparameter", "Paper", "Code"]),
            n_labels=4,
            notes=(_NOTES,),
            rules=frozenset(n for n in range(1, len(rows)) if groups[n] != groups[n - 1]),
        )
        return Shown([table, *(f"Differs: {reason}." for reason in self.lacks(findings))])


@cache
def published_hyperparameters() -> dict[str, dict[str, Hyperparameter]]:
    """Return the paper's table: group → name → line."""
    text = (files("diffretriever.studies.reproduction.exhibits") / "hyperparameters.yaml").read_text("utf-8")
    groups = yaml.safe_load(text)
    return {
        group: {name: Hyperparameter.model_validate(line) for name, line in lines.items()}
        for group, lines in groups.items()
    }


@cache
def code_values() -> dict[str, str]:
    """Return what the code does, key → value as the table writes it."""
    job = TrainJob.model_validate({"recipe": "paper", "train": "any", "output": "any"})
    recipe = job.hyperparameters
    return {
        "optimizer": "AdamW",
        "learning_rate": f"{recipe.learning_rate:g}",
        "precision": "bf16",
        "strategy": f"{_STRATEGIES[recipe.strategy]}, {job.workers}\N{MULTIPLICATION SIGN}H100",
        "accumulation": str(recipe.micro_batches_per_worker(job.workers)),
        "negatives": f"1 positive + {recipe.hard_negatives} hard",
        "lengths": f"{recipe.max_query_tokens} / {recipe.max_passage_tokens} tokens",
        "temperature": f"τ = {recipe.temperature:g}",
        "decoding": "0.0",
        "warmup": f"{WARMUP:g}",
        "lora_dropout": f"{recipe.lora_dropout:g}",
        "lora_rank": str(LORA_RANK),
        "lora_alpha": str(LORA_ALPHA),
        # One pass over the training set, since `max_steps` has no other default.
        "epochs": "1",
        **{name: str(getattr(recipe, name)) for name in ("seed", "queries_per_device", "batch_queries")},
        **_adapter_sizes(),
        **_preset_values(),
    }


def _preset_values() -> dict[str, str]:
    values = {}
    for name in ("dream", "llada"):
        config = load_retriever(f"diffretriever-{name}")
        assert has_slots(config), "DiffRetriever's presets have slots"
        values[f"{name}_budget"] = f"({config.budget.query}, {config.budget.passage})"
        values["steps"] = str(config.steps)
    for key, preset in _CAPS.items():
        values[key] = f"N = {load_retriever(preset).max_vectors('passage')}"
    sources = {"dream": "diffretriever-dream", "llada": "diffretriever-llada"}
    sources |= {"llama3": "promptreps-llama3", "qwen2.5": "promptreps-qwen2.5"}
    for key, preset in sources.items():
        config = load_retriever(preset)
        assert is_neural(config), "these presets name a backbone"
        values[key] = config.backbone.source
    return values


def _adapter_sizes() -> dict[str, str]:
    trainable, shares = [], []
    for source in FAMILIES:
        targets = published_of(source).adapter_targets
        adapted = [
            shape
            for tensor, shape in shapes_of(source).items()
            if _is_in_a_layer(tensor) and tensor.split(".")[-2] in targets
            if tensor.endswith(".weight")
        ]
        trainable.append(LORA_RANK * sum(map(sum, adapted)))
        shares.append(trainable[-1] / (parameters_of(source) + trainable[-1]))
    return {
        "parameters": f"{min(trainable) / 1e6:.0f}\N{EN DASH}{max(trainable) / 1e6:.0f} M",
        "fraction": f"{100 * min(shares):.2f}\N{EN DASH}{100 * max(shares):.2f}%",
    }


def _is_in_a_layer(tensor: str) -> bool:
    """LLaDA names its output head like its feed-forward output: only a layer number tells them apart."""
    return any(part.isdigit() for part in tensor.split("."))
