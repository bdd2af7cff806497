"""How a retriever is fine-tuned: the recipe, the job around it, and what a trained adapter says of its training.

Which retriever is trained (method, backbone, precision, slots, passes, prompt) is said by its `RetrieverConfig` alone.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeAlias, get_args

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator
from pydantic_settings import NoDecode

from diffretriever.schemas.base import Model, differing_fields
from diffretriever.schemas.budget import BudgetChoice
from diffretriever.schemas.codec import CodecConfig
from diffretriever.schemas.places import Place
from diffretriever.schemas.retriever import RetrieverConfig
from diffretriever.schemas.settings import PresetListing

MANIFEST_FILE = "training.json"
"""Name of the manifest beside an adapter."""

Share = Annotated[float, Field(ge=0, lt=1)]

OWN_TOKENS = "own-tokens"
"""The teacher that is the retriever itself."""

RecipeName: TypeAlias = Literal["plain", "paper", "minilm"]

RECIPES: dict[RecipeName, dict[str, Any]] = {
    "plain": {},
    "paper": {"strategy": "deepspeed", "workers": 4},
    "minilm": {
        "workers": 2,
        "batch_queries": 32,
        "queries_per_device": 16,
        "hard_negatives": 3,
        "equal_passages": "mask",
        "max_steps": 500,
        "max_query_tokens": 64,
        "max_passage_tokens": 256,
        "learning_rate": 3e-4,
        "temperature": 0.02,
        "lora_dropout": 0.0,
        "slot_embeddings": 16,
        "token_head": True,
        "word_weights": "idf",
        "gradient_checkpointing": False,
        "query_budgets": (1, 2, 4),
        "passage_budgets": (1, 4, 8, 16),
        "distillation": "kl",
        "teacher": OWN_TOKENS,
        "teacher_temperature": 0.018,
        "distillation_weight": 8.0,
    },
}
"""What a named recipe has otherwise than the defaults of `Recipe`, and how many workers it takes. `paper` is its
hyperparameter table and nothing else; the others are ours."""


class Recipe(Model):
    """One recipe for all methods and backbones; the defaults are the paper's (its §4.1 and hyperparameter table).

    Only the strategy is not: its gradients are the same, and the recipe `paper` of `RECIPES` has the paper's. What it
    leaves open is as in the authors' `train_diffretriever.py`: cosine to zero, weight decay, clipping.
    """

    learning_rate: PositiveFloat = 1e-4
    """Peak of AdamW's learning rate; after the warm-up it falls to zero along half a cosine."""
    warmup: Share = 0.06
    """Share of the steps in which the learning rate rises linearly."""
    weight_decay: NonNegativeFloat = 0.01
    """AdamW's decoupled weight decay."""
    clip_norm: PositiveFloat = 1.0
    """Largest norm of the gradient of a step; a longer one is scaled down to it."""
    epochs: PositiveInt = 1
    """Passes over the training set, each in another order and with other negatives."""
    max_steps: PositiveInt | None = None
    """Optimiser steps to stop after, if that is earlier; the learning rate reaches zero there."""
    seed: NonNegativeInt = 42
    """Seed of the order, the sampling, LoRA's start and the dropout, whatever the number of workers."""
    batch_queries: PositiveInt = 128
    """Queries of an optimiser step, over all workers; the paper has 8 on each of 4 GPUs, 4 times accumulated."""
    queries_per_device: PositiveInt = 8
    """Queries whose texts a worker runs at a time, with their passages."""
    hard_negatives: NonNegativeInt = 15
    """Negatives that each query brings, after its one positive."""
    negatives: Literal["local", "gathered", "cached"] = "gathered"
    """Whose passages are candidates for a query. `local`: those of the `queries_per_device` queries run with it.
    `gathered`: of these queries on all workers (paper: 32 queries, 512 passages). `cached`: of all `batch_queries`, in
    the memory of one part by gradient caching (Gao et al. 2021, arXiv 2101.06983), for some 4/3 of the time."""
    equal_passages: Literal["mask", "keep"] = "keep"
    """What becomes of a candidate that has the text of a query's positive, or of another passage that the training set
    knows to answer the query. `keep`: it is a negative, as in the paper and in the authors' code, whose labels know
    nothing but the place of the positive. `mask`: it is not among the query's candidates."""
    max_query_tokens: PositiveInt = 32
    """Longest query in training, in subword tokens, in place of the retriever's own limit; counted as its
    `text.length_semantics` says."""
    max_passage_tokens: PositiveInt = 156
    """Longest passage in training, in subword tokens, likewise."""
    temperature: PositiveFloat = 0.01
    """τ, by which dense scores are divided in the loss. Sparse scores are taken as they are."""
    sparse_weight: NonNegativeFloat = 1.0
    """Weight of the sparse loss beside the dense one; methods without sparse scores have none."""
    distillation: Literal["none", "kl", "mse", "align"] = "none"
    """Learn from a teacher too: from its scores in the training set, of each query's own passages, or from those that a
    `teacher` gives all candidates. `kl`: divergence of the two distributions over them; `mse`: squared difference of
    dense score and teacher's score, for teachers that score by cosine as well; `align`: 1 - cosine of the mean of a
    text's vectors and the mean of the teacher's."""
    teacher: str | None = None
    """Retriever to learn from, a preset or a YAML file; it reads every text as well, without being trained. Or
    `own-tokens`: the states of the text's tokens that an adapter of slots alone (`adapter_on: slots`) leaves as they
    are, with half their mean in each, as `minilm-tokens` with `mean_share: 0.5` scores them; they take no pass of their
    own."""
    distillation_weight: PositiveFloat = 1.0
    """Weight of the loss that learns from the teacher."""
    teacher_temperature: PositiveFloat = 0.01
    """Number that the teacher's scores are divided by under `kl`: 0.01 suits cosines, 1 suits logits."""
    compression: Annotated[CodecConfig | None, NoDecode] = None
    """Codec, such as `residual2`, through which passages go before they are scored in the dense loss, as they would in
    an index compressed by it; gradients pass it by (straight through). None: passages as they are, as in the paper."""
    compression_refit: PositiveInt = 100
    """Steps after which that codec is fitted again, to the weights of the moment, on some 2,000 training passages."""
    query_budgets: tuple[PositiveInt, ...] = ()
    """Numbers of query slots, one of which is drawn for each step; none: always the retriever's own."""
    passage_budgets: tuple[PositiveInt, ...] = ()
    """Numbers of passage slots, drawn independently; none: always the retriever's own."""
    lora_rank: PositiveInt = 16
    """r of LoRA (Hu et al. 2021, arXiv 2106.09685) on the attention's four projections and the three (BERT: two) of the
    feed-forward layer."""
    lora_alpha: PositiveInt = 64
    """The change of a matrix is alpha / r · B A."""
    lora_dropout: Share = 0.05
    """Dropout before A; there is no other, whatever the backbone's config says."""
    adapter_head: Literal["include", "drop"] = "drop"
    """Whether the output head gets LoRA as well; it touches sparse scores only."""
    slot_embeddings: NonNegativeInt = 0
    """Slots that get a vector of their own, learned, added to the mask's at the input: the same for queries and
    passages, at least as many as the largest budget. 0: slots differ by their positions only, as in the paper."""
    token_head: bool = False
    """Learn a matrix between a slot's state and the output head, for backbones whose head was never trained to read
    slots; it touches sparse scores only."""
    word_weights: Literal["none", "idf"] = "none"
    """What impacts are multiplied with. `none`: nothing, as in the paper. `idf`: the square root of the word's inverse
    document frequency among the training set's passages, in queries and passages alike, so that a rare word that both
    share counts for more; on average they stay as large as they are."""
    gradient_checkpointing: bool = True
    """Keep one state a layer and compute the rest again: a third more time, a fraction of the memory."""
    strategy: Literal["ddp", "deepspeed"] = "ddp"
    """`ddp`: the gradients and the optimiser's state of the adapter on each worker. `deepspeed`: ZeRO-2, as in the
    authors' code, which shares them out among workers; worth it for adapters of hundreds of millions of parameters. The
    gradients are the same."""

    @model_validator(mode="after")
    def _teacher_teaches(self) -> Self:
        if self.teacher is not None and self.distillation == "none":
            raise ValueError("teacher: nothing is learned from it: set distillation to kl, mse or align")
        if self.teacher == OWN_TOKENS and self.distillation == "align":
            raise ValueError(f"distillation: align compares means of vectors: take kl with teacher {OWN_TOKENS}")
        if self.teacher is None and self.distillation == "align":
            raise ValueError("distillation: align learns from vectors, not scores: name a teacher")
        return self

    @model_validator(mode="after")
    def _whole_parts(self) -> Self:
        if self.batch_queries % self.queries_per_device:
            raise ValueError(
                f"batch_queries ({self.batch_queries}) must be a multiple of queries_per_device "
                f"({self.queries_per_device})"
            )
        if self.negatives == "local" and self.hard_negatives == 0 and self.queries_per_device == 1:
            raise ValueError("no query has a negative: raise hard_negatives or queries_per_device")
        return self

    def parts_per_worker(self, workers: int) -> int:
        """Return how many parts of `queries_per_device` queries a worker runs in each step: the paper's accumulation.

        Raises:
            ValueError: the batch does not divide evenly.
        """
        parts = self.batch_queries // self.queries_per_device
        if parts % workers:
            raise ValueError(
                f"a batch of {self.batch_queries} queries has {parts} parts of {self.queries_per_device}, which "
                f"{workers} workers cannot share evenly: change --workers, --batch-queries or --queries-per-device"
            )
        return parts // workers

    @property
    def bound_to_workers(self) -> str | None:
        """Why a training with this recipe cannot go on with another number of workers; None where it can.

        A step's batch is the same for any number; what it is held against, and how its state is stored, may not be.
        """
        if self.negatives == "gathered":
            return (
                "with gathered negatives a query's candidates are the passages of all workers, so that it would be "
                "another loss (that of local and cached ones is not)"
            )
        if self.strategy == "deepspeed":
            return "DeepSpeed has stored a share of the optimiser's state for each of them (ddp stores it whole)"
        return None


class TrainJob(Recipe, PresetListing):
    """Fine-tune a retriever's backbone with LoRA on Ray Train; run again, the same command resumes."""

    recipe: RecipeName = "plain"
    """Where settings come from that are not given. `paper`: the paper's hyperparameter table, four workers and ZeRO-2
    included. `plain`: the same values in plain data parallelism, on one worker or as many as are given. `minilm`:
    what the embedded adapter was trained with."""
    train: str
    """Training set, as prepare_training.py makes it, a folder or object-store URI; or what it makes one from, a file,
    folder or name: it is then made in the output folder."""
    retriever: str = "diffretriever-minilm-untrained"
    """Name of a preset, or a YAML file that describes a retriever."""
    output: Place
    """Folder or object-store URI for the adapter, the checkpoints, TensorBoard's files and the trained retriever's YAML
    file; a folder must be the same on all machines that train."""
    backbone: str | None = None
    """Local folder or hub id to use in place of the retriever's own backbone."""
    adapter: str | None = None
    """LoRA adapter to go on from in place of the retriever's own: local folder or hub id. It is left as it is."""
    budget: BudgetChoice | None = None
    """Slots as q<K_q>p<K_p> in place of the retriever's own, or the selection.json of a budget sweep."""
    workers: PositiveInt = 1
    """Processes that train, each with its share of every batch."""
    cpus_per_worker: PositiveFloat = 1.0
    """CPUs that Ray sets aside for a worker."""
    gpus_per_worker: NonNegativeFloat | None = None
    """GPUs of a worker; default: 1 where the cluster has any, else 0. With `autoscale`, required while no GPU is
    alive."""
    threads_per_worker: PositiveInt = 1
    """CPU threads that compute in a worker."""
    validation: str | None = None
    """Collection to measure nDCG@10 on before, during and after training; small, for all of it is encoded each time."""
    validation_split: str = "test"
    """Split of its qrels."""
    validate_every: PositiveInt | None = None
    """Steps between two measurements; default: only before the first step and after the last."""
    checkpoint_every: PositiveInt = 1000
    """Steps between two checkpoints."""
    checkpoints_kept: PositiveInt = 3
    """Checkpoints kept, the latest ones."""
    max_failures: NonNegativeInt = 3
    """Deaths of workers to survive by going on from the last checkpoint."""
    autoscale: bool = False
    """The cluster can add machines: wait for them where the present ones have no room."""
    ray_address: str = "auto"
    """Ray cluster to use; `auto` is a running one if there is, else a local one started for this job; `local` always
    starts one."""

    @model_validator(mode="before")
    @classmethod
    def _start_from_the_recipe(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        name: Any = values.get("recipe")
        return {**RECIPES[name], **values} if name in get_args(RecipeName) else values

    @model_validator(mode="after")
    def _workers_share_evenly(self) -> Self:
        self.parts_per_worker(self.workers)
        return self

    @property
    def hyperparameters(self) -> Recipe:
        """The recipe's values alone."""
        return Recipe(**{name: getattr(self, name) for name in Recipe.model_fields})

    @property
    def recipe_title(self) -> str:
        """The recipe's name, and what was given in place of its values."""
        named = TrainJob.model_validate({"recipe": self.recipe, "train": self.train, "output": self.output})
        names = (*Recipe.model_fields, "workers")
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

    def differences(self, other: TrainingManifest) -> list[str]:
        """Name the fields in which two trainings differ, as `field: this != other`.

        How far they are does not count, nor how many workers they have: see `Recipe.bound_to_workers`.
        """
        return differing_fields(self._identity(), other._identity())

    def _identity(self) -> dict[str, Any]:
        values = self.model_dump(mode="json", exclude={"workers", "step", "trainable", "adapter", "slots", "versions"})
        values["retriever"] = self.retriever.identity()
        values["start"] = None if self.start is None else self.start.digest
        return values
