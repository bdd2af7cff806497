"""Jobs on three nodes that share nothing but S3: from a corpus to an endpoint, and paths that only one node has.

The way to the endpoint is that of docs/cluster.md. Jobs are submitted, and the application is deployed, from outside of
the nodes; all that is read and written lies on S3.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from diffretriever.core.files import write_text
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.mode import Mode
from diffretriever.search import open_searcher
from tests.cluster.cases import CHECKPOINT, MASKED, RETRIEVER, Bench, ids_in
from tests.cluster.nodes import Job, may_mount
from tests.cluster.s3 import ROOT
from tests.pipelines.corpora import line, write_corpus
from tests.ports import free_port
from tests.serve.asking import LIMIT_S, MODES, ask, pairs, wait_until
from tests.warm.warm_python import with_warm_workers

pytestmark = pytest.mark.cluster

N = 40
LINES = [line(number) for number in range(N)]
IDS = {f"p{number}" for number in range(N)}
QUERIES = {"q1": "masked slot", "q2": "passage query index", "q3": "lance table"}
# One encoder, so that the shards keep the rest.
SMALL = ("--encoders", 1, "--cpus-per-encoder", 0.5)
# More than half of a node for a shard: two are on two nodes.
CPUS = {"ingress": 0.3, "encoder": 0.3, "shard": 1.1}

Ranked = dict[Mode, list[list[tuple[str, float]]]]


@dataclass(frozen=True)
class Desk:
    """A person's machine: a checkout, and the address of the head."""

    bench: Bench
    checkout: Path

    def submit(self, program: str, *flags: object) -> Job:
        """Submit a job of `jobs/`, with the checkout as its working directory."""
        submit = ("-m", "ray.scripts.scripts", "job", "submit", "--address", self.bench.nodes.dashboard)
        command = ("--working-dir", ".", "--", "python", f"jobs/{program}", *flags)
        return self.bench.nodes.outside(self.checkout, *submit, *command)

    def deploy(self, config: dict[str, Any]) -> None:
        """Deploy an application, and wait until it runs."""
        (self.checkout / "deployed.yaml").write_text(yaml.safe_dump(config))
        where = ("--address", self.bench.nodes.dashboard)
        self.bench.nodes.outside(self.checkout, "-m", "ray.serve.scripts", "deploy", *where, "deployed.yaml").done()

        def runs() -> bool:
            (found,) = httpx2.get(self._applications, timeout=LIMIT_S, verify=False).json()["applications"].values()
            assert found["status"] in {"NOT_STARTED", "DEPLOYING", "RUNNING"}, found
            return bool(found["status"] == "RUNNING")

        wait_until(runs)

    def undeploy(self) -> None:
        httpx2.delete(self._applications, timeout=LIMIT_S).raise_for_status()

    @property
    def _applications(self) -> str:
        return f"{self.bench.nodes.dashboard}/api/serve/applications/"


@pytest.fixture
def desk(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setenv("DIFFRETRIEVER_CACHE", str(tmp_path / "cache"))
    checkout = tmp_path / "checkout"
    for name in ("platform", "schemas", "jobs", "serve"):
        shutil.copytree(ROOT / name, checkout / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    (checkout / RETRIEVER).write_text(MASKED, "utf-8")
    made = Desk(bench, checkout)
    yield made
    made.undeploy()


@pytest.fixture
def collection(bench: Bench, tmp_path: Path) -> str:
    """The URI of a BEIR folder with three queries."""
    folder = write_corpus(tmp_path / "collection", LINES)
    queries = [json.dumps({"_id": name, "text": text}) + "\n" for name, text in QUERIES.items()]
    (folder / "queries.jsonl").write_text("".join(queries), "utf-8")
    judged = [f"{name}\tp{number}\t1\n" for number, name in enumerate(QUERIES)]
    (folder / "qrels" / "test.tsv").write_text("".join(judged), "utf-8")
    return bench.upload(folder)


def searched(index: str, *queries: str, modes: tuple[Mode, ...] | None = None) -> Ranked:
    """Return what a search in this process finds."""
    found = open_searcher(index).search(list(queries), k=2 * N, modes=modes)
    return {mode: list(hits) for mode, hits in found.items()}


def files_on_the_head(bench: Bench) -> set[str]:
    return {path.name for path in bench.driver.inside(bench.nodes.disk).iterdir()} - {"cache"}


def serve_config(index: str, port: int) -> dict[str, Any]:
    """Return serve/config.yaml with another index, smaller replicas and one proxy: the nodes share a network."""
    config = yaml.safe_load((ROOT / "serve" / "config.yaml").read_text("utf-8"))
    config |= {"proxy_location": "HeadOnly", "http_options": {"host": "127.0.0.1", "port": port}}
    (application,) = config["applications"]
    application["args"].update({"index": index, "open": True, "refresh_s": 0.2, "limits.timeout_s": LIMIT_S})
    for part, cpus in CPUS.items():
        application["args"][part] |= {"cpus": cpus, "gpus": 0, "max_replicas": 1}
    # As an image has it; submitted jobs have brought their own.
    code = {"PYTHONPATH": str(ROOT / "platform")}
    application["runtime_env"] = with_warm_workers({"env_vars": code})
    return dict(config)


def assert_served(client: httpx2.Client, index: str, query: str) -> None:
    """The server answers by the latest version, as a search in this process does."""
    latest = PassageIndex.open(index)
    here = searched(index, query, modes=MODES)
    for mode in MODES:
        answer = ask(client, query=query, k=2 * N, mode=mode)
        assert answer["index"]["version"] == latest.version
        assert pairs(answer) == here[mode], mode
    assert sum(passages_of_shards(client)) == len(latest)


def passages_of_shards(client: httpx2.Client) -> list[int]:
    return [part["passages"] for part in client.get("/index").json()["parts"]]


def test_encode_serve_add_and_encode_again(desk: Desk, collection: str) -> None:
    bench = desk.bench
    before = files_on_the_head(bench)
    masked, checkpoint = bench.index(), bench.upload(bench.nodes.files / CHECKPOINT)
    neural = ("--retriever", RETRIEVER, "--backbone", checkpoint, *SMALL)
    encode = ("encode_beir.py", "--collection", collection)
    desk.submit(*encode, *neural, "--index", masked).done()
    assert ids_in(masked) == IDS

    port = free_port()
    desk.deploy(serve_config(masked, port))
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT_S) as client:
        assert_served(client, masked, "masked slot")
        sent = {"id": "added", "text": "honey bees store water", "collection": "bees"}
        added = client.post("/passages", json={"passages": [sent]}).raise_for_status().json()
        assert (added["added"], added["version"]) == (1, PassageIndex.open(masked).version)
        ((only,),) = pairs(ask(client, query="honey", mode="dense", filter="collection = 'bees'"))
        assert only[0] == "added"
        assert passages_of_shards(client) in ([N, 1], [1, N])
        assert_served(client, masked, "honey bees")

        write_text(f"{collection}/corpus.jsonl", "\n".join([*LINES[1:], line(0, "another text"), line(N)]) + "\n")
        said = desk.submit(*encode, *neural, "--index", masked, "--on-existing", "replace").done()
        assert "2 encoded now" in said
        assert "1 replaced" in said
        assert ids_in(masked) == IDS | {"added", f"p{N}"}
        version = PassageIndex.open(masked).version
        wait_until(lambda: client.get("/index").json()["index"]["version"] == version)
        assert_served(client, masked, "another text")
        (answer,) = ask(client, query="another text", k=2 * N, mode="dense")["results"]
        assert {hit["text"] for hit in answer["hits"] if hit["id"] == "p0"} == {"another text"}
    assert files_on_the_head(bench) == before


@pytest.fixture
def separate() -> None:
    """Paths of one node are not there on others."""
    if not may_mount():
        pytest.skip("the nodes share the disk: no right to mount")


@pytest.mark.usefixtures("separate")
def test_a_corpus_that_only_the_head_has_is_read_there(bench: Bench) -> None:
    """While other nodes write the index, and what is wrong with it is set aside."""
    mine, index = bench.nodes.disk / "mine", bench.index()
    corpus = mine / "corpus.jsonl"
    bench.driver.inside(mine).mkdir()
    bench.driver.inside(corpus).write_text("\n".join([*LINES, "{broken"]) + "\n", "utf-8")
    aside = ("--on-bad-input", "quarantine")
    encode = ("encode_beir.py", "--collection", corpus, "--index", index, "--retriever", "bm25", *aside)
    bench.run(*encode)
    assert ids_in(index) == IDS
    assert not any(node.inside(mine).exists() for node in bench.nodes.nodes[1:])
