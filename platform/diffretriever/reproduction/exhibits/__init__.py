"""Every table and figure of the paper, in its order. Another kind is a file here and its lines in `EXHIBITS`."""

from __future__ import annotations

from diffretriever.reproduction.exhibits.base import Exhibit, Findings, Shown
from diffretriever.reproduction.exhibits.hyperparameters import Hyperparameters
from diffretriever.reproduction.exhibits.prompts import Prompts
from diffretriever.reproduction.exhibits.tables import ScoreTable

EXHIBITS: tuple[Exhibit, ...] = (
    Prompts("prompts", "Table 1", "retrieval prompts"),
    ScoreTable("main-indomain", "Table 2", "retrieval on MS MARCO and TREC DL"),
    ScoreTable("main-beir7", "Table 3", "transfer to seven BEIR collections"),
    ScoreTable("multistep-indomain", "Table 4", "one forward pass against two, MS MARCO and TREC DL"),
    ScoreTable("multistep-beir7", "Table 5", "one forward pass against two, BEIR"),
    ScoreTable("prompt-comparison", "Table 6", "two wordings of the prompt"),
    Hyperparameters("hyperparameters", "Table 7", "fine-tuning hyperparameters"),
    ScoreTable("compressed-storage", "Table 8", "compressed indexes: scores and sizes"),
    ScoreTable("beir7-modes", "Table 9", "BEIR by dense, sparse and hybrid scores"),
    ScoreTable("dense-baselines", "Table 10", "beside other dense retrievers"),
    ScoreTable("mini", "Beyond the paper", "all methods on the embedded backbone"),
)

__all__ = ["EXHIBITS", "Exhibit", "Findings", "Shown"]
