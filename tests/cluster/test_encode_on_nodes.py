"""Encoding on three nodes into S3: whoever dies and whatever S3 answers, each passage is there once."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from diffretriever.index.table import PassageIndex
from diffretriever.schemas.inspect import Problem
from diffretriever.search import open_searcher
from diffretriever.search.inspection import inspect
from tests.cluster.cases import COMMITS, IDS, WRITES, Bench, ids_in, vectors_in
from tests.cluster.fault_proxy import Fault
from tests.cluster.nodes import Job

pytestmark = pytest.mark.cluster

# Whoever encodes a passage again may do it among others, whose padding moves its last bits.
TOLERANCE = 2e-3


def key_of(index: str) -> str:
    """Return what paths of requests have that concern an index's table."""
    return re.escape(index.removeprefix("s3:/")) + "/.*"


def until(condition: Callable[[], object], job: Job) -> None:
    """Wait for something that happens during a job, which must not end before."""
    while not condition():
        assert job.process.poll() is None, job.text()
        time.sleep(0.05)


def problems(index: str) -> list[Problem]:
    """Return what a check of all of an index finds."""
    report = inspect(PassageIndex.open(index), check=True)
    assert report.verification is not None
    return report.verification.problems


def test_the_corpus_is_encoded_searched_and_verified(bench: Bench, reference: str) -> None:
    assert ids_in(reference) == IDS
    assert problems(reference) == []
    found = json.loads(bench.run("search.py", "--index", reference, "--query", "passage text", "--json-output"))
    assert len(found) == 10
    assert {hit["id"] for hit in found} <= IDS


def test_a_node_that_dies_costs_no_passage(bench: Bench, reference: str) -> None:
    index, dead = bench.index(), threading.Event()
    nodes = bench.nodes
    node = nodes.nodes[2]

    def die() -> None:
        until(node.encoders, job)
        dead.set()
        node.kill()

    with bench.s3.proxy.during(Fault(method="PUT", path=key_of(index) + WRITES, after=4, times=1, call=die)):
        job = bench.encode(index)
        until(dead.is_set, job)
    nodes.kill(node)
    nodes.add("another", 2)
    job.done()
    expected, found = vectors_in(reference), vectors_in(index)
    assert found.keys() == expected.keys()
    for passage, vectors in expected.items():
        np.testing.assert_allclose(found[passage], vectors, atol=TOLERANCE, err_msg=passage)
    assert problems(index) == []


def test_bm25_goes_the_same_way_and_failing_and_slow_answers_cost_nothing(bench: Bench) -> None:
    index = bench.index()
    key = key_of(index)
    often = Fault(status=500, path=key, every=5)
    busy = Fault(status=503, method="PUT", path=key + WRITES, every=3)
    slow = Fault(seconds=0.1, path=key, every=7)
    lost = Fault(status=500, carried_out=True, method="PUT", path=key + COMMITS, after=1, times=1)
    with bench.s3.proxy.during(often, busy, slow, lost):
        bench.encode_bm25(index).done()
    assert lost.met
    assert min(fault.met for fault in (often, busy, slow)) > 2
    assert ids_in(index) == IDS
    assert problems(index) == []
    ((best, *_),) = open_searcher(index).search(["passage 17"], k=10, modes=["sparse"])["sparse"]
    assert best[0] == "p17"


def test_a_refused_access_ends_the_job_and_names_the_place(bench: Bench) -> None:
    index = bench.index()
    with bench.s3.proxy.during(Fault(status=403, path=key_of(index) + WRITES, after=3)):
        job = bench.encode_bm25(index)
        assert job.status() == 1
    assert "Traceback" not in job.text()
    (error,) = [text for text in job.text().splitlines() if text.startswith("error: ")]
    assert index in error
    assert "403" in error


def test_two_jobs_at_once_commit_no_passage_twice(bench: Bench) -> None:
    """Each of them writes its first block only once the other is as far, or has ended."""
    index = bench.index()
    jobs: list[Job] = []

    def both() -> None:
        while len(jobs) < 2 or not all("0%" in job.text() or job.process.poll() is not None for job in jobs):
            time.sleep(0.05)

    with bench.s3.proxy.during(Fault(call=both, method="PUT", path=key_of(index) + WRITES)):
        jobs += [bench.encode_bm25(index, node) for node in bench.nodes.nodes[1:]]
        ends = [job.status() for job in jobs]
    assert 0 in ends
    for job in jobs:
        assert job.process.returncode == 0 or "another " in job.text(), job.text()
    assert ids_in(index) == IDS


def test_an_index_on_s3_is_accelerated(bench: Bench, reference: str) -> None:
    bench.run("accelerate_index.py", "--index", reference)
