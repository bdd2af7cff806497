"""Every table and figure of the paper, in its order. Another kind is a file here and its lines in `EXHIBITS`."""

from __future__ import annotations

from diffretriever.reproduction.exhibits.base import Exhibit, Findings, Shown
from diffretriever.reproduction.exhibits.decomposition import Decomposition
from diffretriever.reproduction.exhibits.heat_maps import HeatMaps
from diffretriever.reproduction.exhibits.hyperparameters import Hyperparameters
from diffretriever.reproduction.exhibits.index_storage import IndexStorage
from diffretriever.reproduction.exhibits.latency_quality import LatencyQuality
from diffretriever.reproduction.exhibits.latency_scaling import LatencyScaling
from diffretriever.reproduction.exhibits.oracles import Oracles
from diffretriever.reproduction.exhibits.overview import Overview
from diffretriever.reproduction.exhibits.prompts import Prompts
from diffretriever.reproduction.exhibits.query_features import QueryFeatures
from diffretriever.reproduction.exhibits.statements import Statements
from diffretriever.reproduction.exhibits.tables import ScoreTable
from diffretriever.reproduction.tables import AVERAGE, BEIR7

_INDOMAIN = ("msmarco-dev", "dl19", "dl20")

EXHIBITS: tuple[Exhibit, ...] = (
    LatencyQuality("latency-quality", "Figure 1", "quality against latency"),
    Overview("overview", "Figure 2", "how the method works"),
    Prompts("prompts", "Table 1", "retrieval prompts"),
    HeatMaps("heat-maps-train", "Figure 3", "MS MARCO train, which chose the budgets", ("msmarco-train",), 1),
    ScoreTable("main-indomain", "Table 2", "retrieval on MS MARCO and TREC DL"),
    ScoreTable("main-beir7", "Table 3", "transfer to seven BEIR collections"),
    Decomposition("decomposition", "Figure 4", "where the gains come from"),
    HeatMaps("heat-maps", "Figure 5", "MS MARCO dev and the BEIR average", ("msmarco-dev", AVERAGE), 2),
    Oracles("oracles", "Figure 6", "what per-query oracles reach"),
    QueryFeatures("query-features", "Figure 7", "which queries want more slots"),
    ScoreTable("multistep-indomain", "Table 4", "one forward pass against two, MS MARCO and TREC DL"),
    ScoreTable("multistep-beir7", "Table 5", "one forward pass against two, BEIR"),
    ScoreTable("prompt-comparison", "Table 6", "two wordings of the prompt"),
    Hyperparameters("hyperparameters", "Table 7", "fine-tuning hyperparameters"),
    LatencyScaling("latency-scaling", "Figure 8", "latency by input length and index size"),
    IndexStorage("index-storage-figure", "Figure 9", "index storage by corpus size"),
    ScoreTable("compressed-storage", "Table 8", "compressed indexes: scores and sizes"),
    ScoreTable("beir7-modes", "Table 9", "BEIR by dense, sparse and hybrid scores"),
    ScoreTable("dense-baselines", "Table 10", "beside other dense retrievers"),
    HeatMaps("heat-maps-indomain", "Figure 10", "MS MARCO dev and TREC DL", _INDOMAIN, 3),
    HeatMaps("heat-maps-beir7", "Figure 11", "the seven BEIR collections and their average", (*BEIR7, AVERAGE), 4),
    Statements("statements", "In the text", "numbers that the paper says in words"),
    ScoreTable("mini", "Beyond the paper", "all methods on the embedded backbone"),
)

__all__ = ["EXHIBITS", "Exhibit", "Findings", "Shown"]
