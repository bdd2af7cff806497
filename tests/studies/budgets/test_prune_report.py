"""The pruning curve of a made-up sweep, against a search written out plainly."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import scipy.stats

from diffretriever.encoders.base import Encoder
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.budget import Budget
from diffretriever.schemas.retriever import MaskedRetriever
from diffretriever.studies.budgets.pruning import PrunePoint, removal_orders, removals
from diffretriever.studies.budgets.pruning_config import PruneSlotsJob
from diffretriever.studies.budgets.pruning_report import PruneReport, prune_slots
from diffretriever.studies.budgets.sweep_files import Outcomes
from diffretriever.vectors.representations import read_vectors
from tests.search.conftest import fill
from tests.studies.budgets.made_up import make_sweep
from tests.studies.budgets.made_up_vectors import PASSAGES, add_vectors, passage_vectors, query_vectors, scores

N = 30


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_sweep(tmp_path_factory.mktemp("sweeps"), "one", n=N)
    add_vectors(folder, "test", N)
    write_collection(folder / "corpus", {f"q{i}": f"d{i % 20}" for i in range(N)})
    return folder


def write_collection(folder: Path, wanted: dict[str, str]) -> None:
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text('{"_id": "d0", "title": "", "text": "heat"}\n')
    (folder / "queries.jsonl").write_text("".join(f'{{"_id": "{q}", "text": "heat in a slab"}}\n' for q in wanted))
    rows = "".join(f"{query}\t{passage}\t1\n" for query, passage in wanted.items())
    (folder / "qrels/test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}")


def job(sweep: Path, output: Path, /, **changes: object) -> PruneSlotsJob:
    values: dict[str, object] = {"sweep": sweep / "test", "collection": str(sweep / "corpus"), "output": output}
    return PruneSlotsJob.model_validate(values | changes)


@pytest.fixture(scope="module")
def made(sweep: Path) -> tuple[PruneReport, Path]:
    output = sweep / "curve"
    return prune_slots(job(sweep, output, keep=(1, 2)), "python jobs/prune_slots.py"), output


def ndcg(found: np.ndarray) -> np.ndarray:
    """nDCG@10 of a single relevant passage, from scores [queries, passages]."""
    ids = [passage.id for passage in PASSAGES]
    values = []
    for query, row in enumerate(found):
        ranked = sorted(range(20), key=lambda p: (-row[p], ids[p]))
        rank = ranked.index(query % 20)
        values.append(1 / np.log2(rank + 2) if rank < 10 else 0.0)
    return np.array(values)


def kept_values(kept: list[list[int]]) -> np.ndarray:
    """What queries score when passage p keeps the slots `kept[p]`."""
    queries, passages = query_vectors(N, 4), passage_vectors(4)
    columns = [scores(queries, passages[p : p + 1, own])[:, 0] for p, own in enumerate(kept)]
    return ndcg(np.stack(columns, axis=1))


def at(report: PruneReport, rule: str, keep: int) -> PrunePoint:
    return next(point for point in report.points if (point.rule, point.keep) == (rule, keep))


def test_points_are_those_of_a_plain_search(made: tuple[PruneReport, Path], sweep: Path) -> None:
    report, _ = made
    orders = [removal_orders(passage[None])[0][0].tolist() for passage in passage_vectors(4)]
    whole = kept_values([[0, 1, 2, 3]] * 20)
    first = kept_values([[0, 1]] * 20)
    even = kept_values([[s for s in range(4) if s not in order[:2]] for order in orders])
    assert at(report, "all", 4).mean == pytest.approx(whole.mean())
    assert at(report, "first slots", 2).mean == pytest.approx(first.mean())
    point = at(report, "same number", 2)
    assert point.mean == pytest.approx(even.mean())
    assert (point.average, point.bytes) == (2.0, 20 * 2 * 8 * 2)
    assert point.against_all is not None
    assert point.against_first is not None
    assert point.against_encoded is None, "the sweep has no index of K_p = 2"
    assert point.against_all.difference == pytest.approx((even - whole).mean())
    raw = scipy.stats.ttest_rel(even, first).pvalue
    assert raw <= point.against_first.t_test <= min(1.0, 4 * raw) + 1e-12
    encoded = at(report, "encoded", 1)
    assert encoded.mean == Outcomes.read(sweep, "test", "dense", "nDCG@10").at(Budget(4, 1)).mean()
    assert at(report, "same number", 1).against_encoded is not None


def test_an_index_by_itself_is_searched_with_fresh_queries(encoder: Encoder, tmp_path: Path) -> None:
    index = fill(encoder, str(tmp_path / "index"))
    write_collection(tmp_path / "corpus", {"q0": "d0", "q1": "d7"})
    given = {"index": index.uri, "collection": str(tmp_path / "corpus"), "output": tmp_path / "curve"}
    report = prune_slots(PruneSlotsJob.model_validate(given), "x")
    assert isinstance(encoder.config, MaskedRetriever)
    budget = encoder.config.budget
    assert (report.query_budget, report.passage_budget, report.passages) == (budget.query, budget.passage, 60)
    assert [p.keep for p in report.points if p.rule == "threshold"] == [1, 2, 4, 8][: budget.passage.bit_length() - 1]
    assert not [p for p in report.points if p.rule == "encoded"]


@pytest.mark.parametrize("rule", ["same number", "threshold", "first slots"])
def test_a_pruned_index_finds_what_the_curve_says(sweep: Path, tmp_path: Path, rule: str) -> None:
    place = str(tmp_path / "pruned")
    asked = job(sweep, tmp_path / "curve", keep=(2,), pruned=place, rule=rule)
    report = prune_slots(asked, "x")
    pruned = PassageIndex.open(place)
    columns = pa.Table.from_batches(pruned.batches(["id", "collection", "text", "reps"], 100))
    assert columns.column("id").to_pylist() == [passage.id for passage in PASSAGES]
    assert pruned.passages(["d7"]) == PassageIndex.open(report.index).passages(["d7"])
    vectors, offsets = read_vectors(columns)
    assert len(vectors) / len(PASSAGES) == at(report, rule, 2).average == 2
    found = [scores(query_vectors(N, 4), vectors[None, a:b])[:, 0] for a, b in pairwise(offsets)]
    assert ndcg(np.stack(found, axis=1)).mean() == pytest.approx(at(report, rule, 2).mean)
    with pytest.raises(ValueError, match="already contains an index"):
        prune_slots(asked, "x")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pruned": "p", "keep": (1, 2)}, "--pruned needs one value of --keep"),
        ({"sweep": None}, "give --sweep, or --index"),
        ({"index": "i"}, "give --sweep, or --index"),
        ({"sweep": None, "index": "i", "collection": None}, "--index needs --collection"),
        ({"keep": (4,)}, "--keep must be below that"),
        ({"query_budget": 3}, "no queries of K_q = 3"),
        ({"collection": None}, "was swept on gone/one, which cannot be opened"),
        ({"measure": "nDGC@10"}, "not a measure"),
    ],
)
def test_mistakes_are_named(sweep: Path, tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prune_slots(job(sweep, tmp_path / "curve", **changes), "x")
    assert not (tmp_path / "curve").exists()


def unit(n: int, dimensions: int, seed: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(n, dimensions))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def loss_of(vectors: np.ndarray, kept: list[int]) -> float:
    dropped = [i for i in range(len(vectors)) if i not in kept]
    return sum(min(float(((vectors[i] - vectors[j]) ** 2).sum()) / 2 for j in kept) for i in dropped)


def test_each_removal_is_the_cheapest_one_left() -> None:
    vectors = unit(7, 5, 0)
    order, losses = (found[0] for found in removal_orders(vectors[None]))
    kept = list(range(7))
    for slot, loss in zip(order.tolist(), losses.tolist(), strict=True):
        cheapest = min(loss_of(vectors, [k for k in kept if k != candidate]) for candidate in kept)
        kept.remove(slot)
        assert loss == pytest.approx(loss_of(vectors, kept))
        assert loss == pytest.approx(cheapest)
    assert len(kept) == 1
    assert (np.diff(losses) >= -1e-12).all()


def ragged(counts: list[int], seed: int) -> tuple[np.ndarray, np.ndarray]:
    return unit(sum(counts), 6, seed), np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def test_all_passages_at_once_are_each_passage_by_itself() -> None:
    vectors, offsets = ragged([4, 1, 7, 4, 2, 7], 3)
    found = removals(vectors, offsets)
    for first, end in pairwise(offsets.tolist()):
        order, losses = (each[0] for each in removal_orders(vectors[None, first:end]))
        ranks, costs = found.ranks_N[first:end], found.costs_N[first:end]
        assert np.argsort(ranks)[:-1].tolist() == order.tolist()
        assert np.isinf(costs).sum() == 1
        assert np.sort(costs)[:-1] == pytest.approx(np.maximum.accumulate(np.diff(losses, prepend=0)))


@pytest.mark.parametrize("total", [4, 5, 6, 12, 19, 20])
def test_a_total_is_met_by_one_threshold_on_the_cost(total: int) -> None:
    vectors, offsets = ragged([4, 1, 7, 4, 4], 5)
    found = removals(vectors, offsets)
    kept = found.keep_total(total)
    assert kept.sum() == max(total, 5), "every passage keeps a slot"
    assert (np.add.reduceat(kept, offsets[:-1]) >= 1).all()
    if not kept.all():
        assert found.costs_N[~kept].max() <= found.costs_N[kept].min()
