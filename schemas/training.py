"""Fine-tuning: the recipe, the job, and the manifest of a trained adapter."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeAlias, get_args

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from diffretriever.schemas.base import Model
from diffretriever.schemas.budget import BudgetChoice
from diffretriever.schemas.locations import Location
from diffretriever.schemas.retriever import RetrieverConfig
from diffretriever.schemas.settings import RetrieverOptions

MANIFEST_FILE = "training.json"
"""Name of the manifest in an adapter's folder."""

WARMUP = 0.06
"""Share of the steps with a rising learning rate (the paper's hyperparameter table)."""
LORA_RANK, LORA_ALPHA = 16, 64
"""LoRA's r and alpha; the scale is alpha / r (the paper's hyperparameter table)."""

Share = Annotated[float, Field(ge=0, lt=1)]

RecipeName: TypeAlias = Literal["plain", "paper", "minilm"]

RECIPES: dict[RecipeName, dict[str, Any]] = {
    "plain": {},
    "paper": {"strategy": "deepspeed", "workers": 4},
    "minilm": {
        "workers": 2,
        "batch_queries": 32,
        "queries_per_device": 16,
        "hard_negatives": 3,
        "max_steps": 500,
        "max_query_tokens": 64,
        "max_passage_tokens": 256,
        "learning_rate": 3e-4,
        "temperature": 0.02,
        "query_budgets": (1, 2, 4),
        "passage_budgets": (1, 4, 8, 16),
        "gradient_checkpointing": False,
        "lora_dropout": 0.0,
        "equal_passages": "mask",
        "slot_layers": 16,
        "distillation_weight": 8.0,
    },
}
"""Name of a recipe → the values that differ from the defaults of `Recipe`, and its number of workers."""


class RecipeOptions(Model):
    """Recipe: values with a flag. The defaults are the paper's (§4.1 and its hyperparameter table)."""

    learning_rate: PositiveFloat = 1e-4
    """Peak learning rate of AdamW, reached by linear warm-up and followed by cosine decay to zero."""
    max_steps: PositiveInt | None = None
    """Optimiser steps. Default: one epoch. Each epoch shuffles the examples and samples the negatives again."""
    seed: NonNegativeInt = 42
    """Seed of shuffling, sampling, LoRA's initial values and dropout."""
    batch_queries: PositiveInt = 128
    """Queries per optimiser step, over all workers. Paper: 8 on each of 4 GPUs, accumulated 4 times."""
    queries_per_device: PositiveInt = 8
    """Queries per worker and forward pass, with their passages. The passages of all workers are the candidates of
    each query (paper: 32 queries, 512 passages)."""
    hard_negatives: NonNegativeInt = 15
    """Negatives per query, in addition to one positive."""
    max_query_tokens: PositiveInt = 32
    """Maximum tokens of a query, in training and as the limit of the trained retriever; `text.length_semantics` sets
    what it counts."""
    max_passage_tokens: PositiveInt = 156
    """Maximum tokens of a passage; trained and counted like `max_query_tokens`."""
    temperature: PositiveFloat = 0.01
    """Temperature τ that divides dense scores in the loss. Sparse scores are not divided."""
    query_budgets: tuple[PositiveInt, ...] = ()
    """Numbers of query slots; each step draws one. Default: the retriever's budget."""
    passage_budgets: tuple[PositiveInt, ...] = ()
    """Numbers of passage slots, drawn independently of the query slots. Default: the retriever's budget."""
    gradient_checkpointing: bool = True
    """Store one state per layer and recompute the rest: a third more time, a fraction of the memory."""
    strategy: Literal["ddp", "deepspeed"] = "ddp"
    """Data parallelism. `ddp`: each worker stores all gradients and optimiser states. `deepspeed`: ZeRO-2 shards them
    over the workers; use it above some 100 million trained parameters. The gradients are the same."""

    @model_validator(mode="after")
    def _whole_micro_batches(self) -> Self:
        if self.batch_queries % self.queries_per_device:
            raise ValueError(
                f"batch_queries ({self.batch_queries}) must be a multiple of queries_per_device "
                f"({self.queries_per_device})"
            )
        if self.hard_negatives == 0 and self.queries_per_device == 1:
            raise ValueError("queries have no negatives: raise hard_negatives or queries_per_device")
        return self

    def micro_batches_per_worker(self, workers: int) -> int:
        """Return the number of forward passes that a worker accumulates in each step.

        Raises:
            ValueError: The batch does not divide evenly.
        """
        micro_batches = self.batch_queries // self.queries_per_device
        if micro_batches % workers:
            raise ValueError(
                f"a batch of {self.batch_queries} queries has {micro_batches} micro-batches of "
                f"{self.queries_per_device}, which {workers} workers cannot share evenly: change --workers, "
                "--batch-queries or --queries-per-device"
            )
        return micro_batches // workers


class Recipe(RecipeOptions):
    """All values of a training. A named recipe fixes the fields below, which have no flag."""

    lora_dropout: Share = 0.05
    """Dropout before LoRA's A; the backbone's dropout is off."""
    equal_passages: Literal["mask", "keep"] = "keep"
    """Treatment of candidates with the same text as a positive of the query. `keep`: negatives, as in the paper.
    `mask`: removed from the query's candidates."""
    slot_layers: NonNegativeInt = 0
    """Slots with a learned input vector, at least the largest budget. Also adds a learned matrix before the output
    head, and idf weights that multiply impacts. 0: none, as in the paper."""
    distillation_weight: NonNegativeFloat = 0.0
    """Weight of the KL divergence from late interaction over the text's token states, which needs
    `adapter_on: slots`. 0: no distillation, as in the paper."""


class TrainJob(RecipeOptions, RetrieverOptions):
    """Fine-tune a retriever's backbone with LoRA on Ray Train; run the same command again to resume."""

    recipe: RecipeName = "plain"
    """Recipe that sets the defaults of the other flags. `paper`: the paper's hyperparameters, with four workers and
    ZeRO-2. `plain`: the same with DDP on one worker. `minilm`: the recipe of the embedded adapter."""
    train: str
    """Training set: folder or object-store URI from prepare_training.py, or any of its --source, which the job prepares
    in the output folder."""
    retriever: str = "diffretriever-minilm-untrained"
    """Trainable retriever: name of a preset, or path of a YAML file."""
    output: Location
    """Folder or object-store URI for the adapter, checkpoints, TensorBoard files and the trained retriever's YAML file.
    All training nodes must share the folder."""
    adapter: str | None = None
    """LoRA adapter to start from, which replaces the retriever's own: folder or hub id. Its files do not change."""
    budget: BudgetChoice | None = None
    """Number of slots, q<K_q>p<K_p>, such as q4p16, or the selection.json of a budget sweep. Default: the
    retriever's."""
    workers: PositiveInt = 1
    """Training processes, which share each batch."""
    cpus_per_worker: PositiveFloat = 1.0
    """CPUs that Ray reserves per worker, also its number of threads."""
    gpus_per_worker: NonNegativeFloat | None = None
    """GPUs per worker; default: 1 if the cluster has GPUs, otherwise 0. With `autoscale`, required until a GPU node is
    up."""
    validation: str | None = None
    """Collection for nDCG@10 before the first step and at each checkpoint, on its split `dev`, otherwise `test`. Each
    time, the job encodes the whole collection."""
    checkpoint_every: PositiveInt = 1000
    """Steps between checkpoints; the job keeps the last three."""
    autoscale: bool = False
    """Wait until the cluster has added nodes, if the present ones are full."""

    @model_validator(mode="before")
    @classmethod
    def _start_from_the_recipe(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        name: Any = values.get("recipe")
        chosen = RECIPES[name] if name in get_args(RecipeName) else {}
        return {field: value for field, value in chosen.items() if field in cls.model_fields} | values

    @model_validator(mode="after")
    def _workers_share_evenly(self) -> Self:
        self.micro_batches_per_worker(self.workers)
        return self

    @property
    def hyperparameters(self) -> Recipe:
        """All values of the recipe, with the flags applied."""
        fixed = Recipe.model_fields.keys() - RecipeOptions.model_fields.keys()
        values = {name: value for name, value in RECIPES[self.recipe].items() if name in fixed}
        return Recipe(**values, **{name: getattr(self, name) for name in RecipeOptions.model_fields})

    @property
    def recipe_title(self) -> str:
        """Name of the recipe, and the values that differ from it."""
        named = TrainJob.model_validate({"recipe": self.recipe, "train": self.train, "output": self.output})
        names = (*RecipeOptions.model_fields, "workers")
        changed = [f"{name} {getattr(self, name)}" for name in names if getattr(self, name) != getattr(named, name)]
        return f"{self.recipe} with {', '.join(changed)}" if changed else self.recipe


class Start(Model):
    """The adapter that a training started from."""

    adapter: str
    """Folder, hub id, or `minilm`."""
    revision: str | None
    """Commit, if the adapter is from the hub."""
    digest: str
    """SHA-256 of its tensor files."""


class TrainingManifest(Model):
    """The file `training.json` of an adapter: its retriever, recipe and training set."""

    retriever: RetrieverConfig
    """The trained retriever without its adapter, with the recipe's lengths; a precision of `auto` is resolved."""
    weights: str
    """Digest of the backbone's weights."""
    start: Start | None = None
    """Adapter that the training started from; None for a new adapter."""
    recipe: Recipe
    data: str
    """Digest of the training set."""
    examples: int
    """Queries in the training set."""
    workers: int
    """Training processes of the last execution."""
    total_steps: int
    """Optimiser steps of the whole training."""
    step: int = 0
    trainable: int | None = None
    """Trained parameters; None before the first checkpoint."""
    adapter: str | None = None
    """SHA-256 of `adapter_model.safetensors`; None before the first checkpoint."""
    slots: str | None = None
    """SHA-256 of `slots.safetensors`; None if the recipe needs no such file."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Versions of the libraries used."""

    @property
    def identity(self) -> dict[str, Any]:
        """Fields that identify a training, as JSON values, without its progress and the paths of weights."""
        values = self.model_dump(mode="json", exclude={"step", "trainable", "adapter", "slots", "versions"})
        values["retriever"] = self.retriever.identity()
        values["start"] = None if self.start is None else self.start.digest
        return values
