"""The application under load while its replicas are killed and its index grows.

Every answer is right or a problem (RFC 9457) that says when to come again, and what was acknowledged is there.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx2

from benchmarks.attack.base import Attack, Round
from benchmarks.attack.living import content_of
from benchmarks.serve.session import kill_actor, serving
from diffretriever.index.table import PassageIndex
from diffretriever.schemas.search import SearchOptions
from diffretriever.search import open_searcher
from tests.serving.serving_cases import PASSAGES, QUERIES, random_encoder, small_index

_SECONDS = 30.0
_SEARCHERS = 3
_K = 7
_CLOSE = 0.01
"""Scores of a query that shares a batch with others differ by the rounding of its vectors."""
_TIMEOUT_S = 120.0
_VICTIMS = {
    "together": ("Ingress#", "SERVE_CONTROLLER_ACTOR"),
    "apart": ("Ingress#", "Encoder#", "Shard0#", "Shard1#", "SERVE_CONTROLLER_ACTOR"),
}


class ServerAttack(Attack):
    """Search, add and delete over HTTP while replicas die."""

    name = "server"

    def round(self, given: Round) -> None:
        """Serve for half a minute in one of the two layouts."""
        layout = given.rng.choice(sorted(_VICTIMS))
        encoder = random_encoder(given.once("server", lambda _: None))
        index = small_index(encoder, str(given.folder / "index"))
        expected = _scores(index.uri)
        settings = {"index": index.uri, "device": "cpu", "layout": layout, "refresh_s": 0.3, "threads": 1}
        if layout == "apart":
            settings |= {"shards": 2}
        with serving(settings, haproxy=False) as url:
            load = Load(url, expected, given.rng.random())
            load.run(lambda: _kill(given, layout))
        for text, count in load.wrong.items():
            given.found(f"{layout}, {count} times: {text}")
        for what, count in load.done.items():
            given.did(what, count)
        _check_acknowledged(given, index.uri, load)


def _kill(given: Round, layout: str) -> None:
    """Kill two or three, one after the other."""
    kills = given.rng.randint(2, 3)
    for _ in range(kills):
        time.sleep(_SECONDS / (kills + 1) * (0.5 + given.rng.random()))
        victim = given.rng.choice(_VICTIMS[layout])
        given.log(f"kill {victim}")
        try:
            kill_actor(victim)
        except (StopIteration, ValueError):
            given.did("nobody there to kill")
            continue
        given.did(f"{layout}: {victim.rstrip('#')} killed")


def _scores(uri: str) -> dict[str, dict[str, float]]:
    """Return query → id → score of all passages."""
    searcher = open_searcher(uri, SearchOptions(index=uri))
    hits = searcher.search(QUERIES, k=len(PASSAGES), modes=["dense"])["dense"]
    return {query: dict(found) for query, found in zip(QUERIES, hits, strict=True)}


def _check_acknowledged(given: Round, uri: str, load: Load) -> None:
    try:
        there = content_of(PassageIndex.open(uri))
    except ValueError as error:
        given.found(str(error))
        return
    kept = load.added - load.asked_to_delete
    given.did("acknowledged passages there", len(kept & there.keys()))
    if lost := sorted(kept - there.keys()):
        given.found(f"acknowledged and not there: {lost[:10]}, {len(lost)} of {len(kept)}")
    if back := sorted(load.deleted & there.keys()):
        given.found(f"acknowledged as deleted and still there: {back[:10]}")
    if missing := sorted({passage.id for passage in PASSAGES} - there.keys()):
        given.found(f"passages that nobody deleted are gone: {missing[:10]}")


@dataclass
class Load:
    """Clients of the application, and what they saw."""

    url: str
    expected: dict[str, dict[str, float]]
    seed: float
    done: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    added: set[str] = field(default_factory=set)
    """Acknowledged."""
    deleted: set[str] = field(default_factory=set)
    """Acknowledged."""
    asked_to_delete: set[str] = field(default_factory=set)

    def run(self, meanwhile: Callable[[], None]) -> None:
        """Ask until the time is over, and `meanwhile` something else."""
        self._end = time.monotonic() + _SECONDS
        work = [*[self._search] * _SEARCHERS, self._change]
        threads = [threading.Thread(target=each, args=(number,)) for number, each in enumerate(work)]
        for thread in threads:
            thread.start()
        meanwhile()
        for thread in threads:
            thread.join()

    def _search(self, number: int) -> None:
        rng = random.Random(f"{self.seed} {number}")  # noqa: S311 (no secret)
        with httpx2.Client(base_url=self.url, timeout=_TIMEOUT_S) as client:
            while time.monotonic() < self._end:
                query = rng.choice(QUERIES)
                answer = self._asked(client, "POST", "/search", {"query": query, "k": _K, "mode": "dense"})
                if answer is not None:
                    self._check(query, [(h["id"], h["score"]) for h in answer["results"][0]["hits"]])

    def _change(self, number: int) -> None:
        rng = random.Random(f"{self.seed} {number}")  # noqa: S311 (no secret)
        count = 0
        with httpx2.Client(base_url=self.url, timeout=_TIMEOUT_S) as client:
            while time.monotonic() < self._end:
                candidates = sorted(self.added - self.asked_to_delete)
                if candidates and rng.random() < 0.2:
                    gone = rng.choice(candidates)
                    self.asked_to_delete.add(gone)
                    if self._asked(client, "DELETE", f"/passages/{gone}") is not None:
                        self.deleted.add(gone)
                    continue
                twin = rng.choice(PASSAGES)
                name = f"n{count}-{twin.id}"
                body = {"passages": [{"id": name, "title": twin.title, "text": twin.text}]}
                if self._asked(client, "POST", "/passages", body) is not None:
                    self.added.add(name)
                count += 1

    def _asked(self, client: httpx2.Client, method: str, path: str, body: Any = None) -> Any:
        """Return the answer's JSON where it is a good one."""
        what = f"{method} {path.rpartition('/')[0] or path}"
        try:
            response = client.request(method, path, json=body)
        except httpx2.HTTPError as error:
            self.wrong[f"{what}: {type(error).__name__}: {error}"] += 1
            time.sleep(0.2)
            return None
        if response.status_code == 200:
            self.done[f"{what}: answered"] += 1
            return response.json()
        self.done[f"{what}: {response.status_code}"] += 1
        problem = _problem_with(response)
        if problem is not None:
            self.wrong[f"{what}: {problem}"] += 1
        time.sleep(0.2)
        return None

    def _check(self, query: str, hits: list[tuple[str, float]]) -> None:
        known = self.expected[query]
        scores = [score for _, score in hits]
        wrong = [i for i, score in hits if abs(known[i.rpartition("-")[2]] - score) > _CLOSE]
        least = sorted(known.values(), reverse=True)[_K - 1]
        if wrong:
            self.wrong[f"scores of {wrong} for '{query}' are wrong: {hits}"] += 1
        elif len(hits) != _K or scores != sorted(scores, reverse=True) or scores[-1] < least - _CLOSE:
            self.wrong[f"hits for '{query}' are not the best {_K}: {hits}, where the last scores {least}"] += 1


def _problem_with(response: httpx2.Response) -> str | None:
    """Return what is wrong with an answer that refuses; None if it is a problem of RFC 9457."""
    kind, status = response.headers.get("content-type", "none"), response.status_code
    if not kind.startswith("application/problem+json"):
        return f"{status} as {kind}: {response.text[:200]}"
    content = response.json()
    if not {"type", "title", "status"} <= content.keys() or content["status"] != status:
        return f"{status} with an incomplete problem: {content}"
    if status == 503 and not response.headers.get("retry-after", "").isdigit():
        return "503 without Retry-After"
    return None if status in (429, 503) else f"{status}: {content}"
