"""How a retriever is fine-tuned: the recipe, the job, and the manifest of a trained adapter.

The retriever (method, backbone, precision, slots, passes, prompt) is described by its `RetrieverConfig` alone.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeAlias, get_args

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from diffretriever.schemas.base import Model
from diffretriever.schemas.budget import BudgetChoice
from diffretriever.schemas.places import Place
from diffretriever.schemas.retriever import RetrieverConfig
from diffretriever.schemas.settings import RetrieverOptions

MANIFEST_FILE = "training.json"
"""Name of the manifest beside an adapter."""

WARMUP = 0.06
"""Share of the steps in which the learning rate rises (the paper's hyperparameter table)."""
LORA_RANK, LORA_ALPHA = 16, 64
"""LoRA's r and the numerator of its scale alpha / r (the paper's hyperparameter table)."""

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
"""Values in which a named recipe differs from the defaults of `Recipe`, and its number of workers."""


class RecipeOptions(Model):
    """Values of a recipe that flags change. The defaults are the paper's (§4.1 and its hyperparameter table)."""

    learning_rate: PositiveFloat = 1e-4
    """Peak of AdamW's learning rate, after a linear warm-up; then it falls to zero along half a cosine."""
    max_steps: PositiveInt | None = None
    """Optimiser steps. Default: one pass over the training set. Each pass has another order and other negatives."""
    seed: NonNegativeInt = 42
    """Seed of the order, the sampling, LoRA's initial values and the dropout."""
    batch_queries: PositiveInt = 128
    """Queries of an optimiser step, over all workers; the paper has 8 on each of 4 GPUs, 4 times accumulated."""
    queries_per_device: PositiveInt = 8
    """Queries that a worker runs at a time, with their passages. The candidates of a query are the passages of these
    queries on all workers (paper: 32 queries, 512 passages)."""
    hard_negatives: NonNegativeInt = 15
    """Negatives of each query, besides its one positive."""
    max_query_tokens: PositiveInt = 32
    """Longest query in training, in subword tokens, in place of the retriever's own limit; counted as its
    `text.length_semantics` says."""
    max_passage_tokens: PositiveInt = 156
    """Longest passage in training, in subword tokens."""
    temperature: PositiveFloat = 0.01
    """τ, which divides dense scores in the loss. Sparse scores have no temperature."""
    query_budgets: tuple[PositiveInt, ...] = ()
    """Numbers of query slots, one of which is drawn for each step. Default: the retriever's own."""
    passage_budgets: tuple[PositiveInt, ...] = ()
    """Numbers of passage slots, drawn independently. Default: the retriever's own."""
    gradient_checkpointing: bool = True
    """Keep one state per layer and compute the rest again: a third more time, a fraction of the memory."""
    strategy: Literal["ddp", "deepspeed"] = "ddp"
    """`ddp`: each worker has all gradients and the whole optimiser state of the adapter. `deepspeed`: ZeRO-2, which
    shards them over the workers, for adapters of hundreds of millions of parameters. The gradients are the same."""

    @model_validator(mode="after")
    def _whole_parts(self) -> Self:
        if self.batch_queries % self.queries_per_device:
            raise ValueError(
                f"batch_queries ({self.batch_queries}) must be a multiple of queries_per_device "
                f"({self.queries_per_device})"
            )
        if self.hard_negatives == 0 and self.queries_per_device == 1:
            raise ValueError("no query has a negative: raise hard_negatives or queries_per_device")
        return self

    def parts_per_worker(self, workers: int) -> int:
        """Return the number of parts of `queries_per_device` queries that a worker accumulates in each step.

        Raises:
            ValueError: The batch does not divide evenly.
        """
        parts = self.batch_queries // self.queries_per_device
        if parts % workers:
            raise ValueError(
                f"a batch of {self.batch_queries} queries has {parts} parts of {self.queries_per_device}, which "
                f"{workers} workers cannot share evenly: change --workers, --batch-queries or --queries-per-device"
            )
        return parts // workers


class Recipe(RecipeOptions):
    """How a retriever is trained. The fields below are fixed by a named recipe and have no flag."""

    lora_dropout: Share = 0.05
    """Dropout before LoRA's A; the backbone's own dropout is off."""
    equal_passages: Literal["mask", "keep"] = "keep"
    """Whether a candidate with the text of a passage that is known to answer the query is a negative. `keep`: it is, as
    in the paper. `mask`: it is left out of the query's candidates."""
    slot_layers: NonNegativeInt = 0
    """Slots that get a learned input vector, at least the largest budget. With them come a learned matrix before the
    output head and idf weights of words, which multiply impacts. 0: none, as in the paper."""
    distillation_weight: NonNegativeFloat = 0.0
    """Weight of the KL divergence from late interaction over the states of the text's own tokens. It needs an adapter
    of slots alone (`adapter_on: slots`), which leaves those states as they are. 0: none, as in the paper."""


class TrainJob(RecipeOptions, RetrieverOptions):
    """Fine-tune a retriever's backbone with LoRA on Ray Train; the same command again resumes."""

    recipe: RecipeName = "plain"
    """Recipe that flags are changes of. `paper`: the paper's hyperparameter table, four workers and ZeRO-2 included.
    `plain`: the same values with plain data parallelism on one worker. `minilm`: that of the embedded adapter."""
    train: str
    """Training set from prepare_training.py, a folder or object-store URI; or any --source of prepare_training.py, from
    which a training set is made in the output folder."""
    retriever: str = "diffretriever-minilm-untrained"
    """Name of a preset, or a YAML file that describes a trainable retriever."""
    output: Place
    """Folder or object-store URI for the adapter, the checkpoints, TensorBoard's files and the trained retriever's YAML
    file; a folder must be the same on all nodes that train."""
    adapter: str | None = None
    """LoRA adapter to start from in place of the retriever's own: local folder or hub id. It does not change."""
    budget: BudgetChoice | None = None
    """Slots as q<K_q>p<K_p> in place of the retriever's own, or the selection.json of a budget sweep."""
    workers: PositiveInt = 1
    """Processes that train, each with its share of every batch."""
    cpus_per_worker: PositiveFloat = 1.0
    """CPUs that Ray reserves for a worker; it computes on as many threads."""
    gpus_per_worker: NonNegativeFloat | None = None
    """GPUs of a worker; default: 1 where the cluster has any, else 0. With `autoscale`, required while no GPU is
    alive."""
    validation: str | None = None
    """Collection to measure nDCG@10 on, before the first step and at each checkpoint, by the qrels of its split `dev`,
    or of `test` if it has no `dev`. All of it is encoded each time."""
    checkpoint_every: PositiveInt = 1000
    """Steps between two checkpoints, the last three of which are kept."""
    autoscale: bool = False
    """The cluster can add nodes: wait for them if the present ones have no room."""

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
        self.parts_per_worker(self.workers)
        return self

    @property
    def hyperparameters(self) -> Recipe:
        """All values of the recipe: those that flags change, and those that are fixed by its name."""
        fixed = Recipe.model_fields.keys() - RecipeOptions.model_fields.keys()
        values = {name: value for name, value in RECIPES[self.recipe].items() if name in fixed}
        return Recipe(**values, **{name: getattr(self, name) for name in RecipeOptions.model_fields})

    @property
    def recipe_title(self) -> str:
        """The recipe's name and the values that differ from it."""
        named = TrainJob.model_validate({"recipe": self.recipe, "train": self.train, "output": self.output})
        names = (*RecipeOptions.model_fields, "workers")
        changed = [f"{name} {getattr(self, name)}" for name in names if getattr(self, name) != getattr(named, name)]
        return f"{self.recipe} with {', '.join(changed)}" if changed else self.recipe


class Start(Model):
    """The adapter that a training went on from."""

    adapter: str
    """Where it was: local folder, hub id, or `minilm`."""
    revision: str | None
    """Of a hub id."""
    digest: str
    """SHA-256 of its tensors' files."""


class TrainingManifest(Model):
    """What an adapter was trained on, and how; `training.json` beside it."""

    retriever: RetrieverConfig
    """The retriever that was trained, without its adapter, `auto` precision replaced by what was used."""
    weights: str
    """Digest of the backbone's weights."""
    start: Start | None = None
    """The adapter that its values began with; None: a new one."""
    recipe: Recipe
    """How."""
    data: str
    """Digest of the training set."""
    examples: int
    """Queries in it."""
    workers: int
    """Processes that trained, in the end."""
    total_steps: int
    """Optimiser steps of the whole training."""
    step: int = 0
    """Steps done."""
    trainable: int | None = None
    """Parameters that are trained; None before there is an adapter."""
    adapter: str | None = None
    """SHA-256 of `adapter_model.safetensors`; None before there is one."""
    slots: str | None = None
    """SHA-256 of `slots.safetensors`; None where the recipe has nothing in it."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Of the libraries that computed it."""

    @property
    def identity(self) -> dict[str, Any]:
        """The fields that tell one training from another, as JSON values: not its progress, nor paths of weights."""
        values = self.model_dump(mode="json", exclude={"step", "trainable", "adapter", "slots", "versions"})
        values["retriever"] = self.retriever.identity()
        values["start"] = None if self.start is None else self.start.digest
        return values
