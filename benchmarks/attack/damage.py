"""Random damage to the files of an index: `--verify` must find it, and searching be right or say why not.

What is found by size or by a checksum of ours must be found always. Damage to a file of Lance's may go unseen where
every row, vector and ranking is as it was: some of its bytes are read by nobody.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.attack.base import Attack, Round
from diffretriever.index import vectors
from diffretriever.index.damage import manifests_of
from diffretriever.index.manifest import bm25_manifest
from diffretriever.index.table import PassageIndex
from diffretriever.index.writer import Committer, text_table, write_block
from diffretriever.schemas.accelerate import AccelerateJob
from diffretriever.schemas.retriever import Bm25Retriever
from diffretriever.schemas.search import SearchOptions
from diffretriever.search.accelerate import accelerate
from diffretriever.search.bm25 import Bm25Search
from diffretriever.search.dense import open_dense
from diffretriever.search.inspection import inspect
from diffretriever.search.sparse import open_sparse
from diffretriever.vectors.hits import Hit, Hits
from tests.index.compressed_cases import QUERIES, add, compressed, fill
from tests.search.conftest import PASSAGES
from tests.search.conftest import QUERIES as TEXTS
from tests.search.dense_cases import prepare

TABLE = "passages.lance"
DAMAGES_A_ROUND = 15
_K = 10
_CPU = torch.device("cpu")
_MAY_BE_ABSENT = ("candidates.json", ".writer.lock")
"""Files without which an index is one that has never had any."""


def _flipped(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _zeroed(data: bytes, rng: random.Random) -> bytes:
    start, size = rng.randrange(len(data)), rng.choice([16, 512, 4096])
    return data[:start] + b"\0" * len(data[start : start + size]) + data[start + size :]


def _swapped(data: bytes, rng: random.Random) -> bytes:
    """Exchange two blocks of equal size."""
    size = max(1, min(512, len(data) // 4))
    first, second = sorted(rng.randrange(max(1, len(data) - size)) for _ in range(2))
    if second < first + size:
        return data
    parts = data[:first], data[second : second + size], data[first + size : second], data[first : first + size]
    return b"".join(parts) + data[second + size :]


DAMAGES: dict[str, Callable[[bytes, random.Random], bytes | None]] = {
    "a bit flipped": _flipped,
    "cut": lambda data, rng: data[: rng.randrange(len(data))],
    "emptied": lambda _data, _rng: b"",
    "removed": lambda _data, _rng: None,
    "a block zeroed": _zeroed,
    "blocks swapped": _swapped,
    "lengthened": lambda data, rng: data + data[: rng.randint(1, 64)],
}
"""What becomes of a file's bytes; None where it is gone."""
KEEPS_SIZE = ("a bit flipped", "a block zeroed", "blocks swapped", "exchanged")
"""Damages that opening cannot see: only `--verify` reads every byte."""
EXCHANGED = "exchanged"
"""A file takes the place of another of its kind."""


class Answers(NamedTuple):
    """What an index gives: rankings by the fastest ways it is ready for, and every text."""

    rankings: tuple[Any, ...]
    texts: dict[str, dict[str, str]]


class DamageAttack(Attack):
    """Damage one file of an index at a time."""

    name = "damage"

    def round(self, given: Round) -> None:
        """Make an index of a random kind, and damage copies of it."""
        kind = given.rng.choice(sorted(KINDS))
        sound = given.folder / "sound"
        ids = KINDS[kind](sound, given.rng)
        case = Case(given, sound, ids)
        for number in range(DAMAGES_A_ROUND):
            case.damage(given.folder / f"damaged-{number}")


class Case:
    """A sound index, what is right of it, and what becomes of damaged copies."""

    def __init__(self, given: Round, sound: Path, ids: list[str]) -> None:
        self.given, self.sound, self.ids = given, sound, ids
        bare = given.folder / "bare"
        shutil.copytree(sound, bare, ignore=shutil.ignore_patterns("codes", "packed", "postings", "bm25"))
        self.right = [answers(sound, ids), answers(bare, ids)]
        self.exact = _exact(bare, len(ids))
        self.rows = PassageIndex.open(str(sound)).dataset.to_table()
        assert problems(sound) == [], "the index is sound before it is damaged"
        self.in_use = used_files(sound)
        # In the order of writing within a kind: Lance draws names at random, and a sync may change times across kinds.
        written = {f.relative_to(sound).as_posix(): f.stat().st_mtime_ns for f in sound.rglob("*") if f.is_file()}
        self.files = sorted(written, key=lambda file: (kind_of(file), written[file], file))

    def damage(self, folder: Path) -> None:
        """Damage one file of a copy and look at it."""
        given, rng = self.given, self.given.rng
        shutil.copytree(self.sound, folder)
        file = rng.choice(self.files)
        damage = rng.choice([*DAMAGES, EXCHANGED])
        if not apply(folder / file, damage, rng):
            given.did("nothing to damage")
            shutil.rmtree(folder)
            return
        kind = kind_of(file) + ("" if file in self.in_use else ", not in use")
        label = f"{damage}: {file} ({kind})"
        given.log(label)
        before = len(given.findings)
        self._judge(folder, file, damage, kind, label)
        if len(given.findings) == before:
            shutil.rmtree(folder)

    def _judge(self, folder: Path, file: str, damage: str, kind: str, label: str) -> None:
        given = self.given
        try:
            found = problems(folder)
        except BaseException as error:
            given.found(f"{label}: --verify raises {describe(error)}")
            return
        searched = self._searched(folder, label)
        if found:
            given.did(f"{kind}: found by --verify")
            if searched == "wrong" and damage in KEEPS_SIZE:
                given.did(f"{kind}: found by --verify, searched unseen before that with other results")
            elif searched == "wrong" and damage == "removed" and kind == "table _versions":
                given.did(f"{kind}: found by --verify, searched as the version before")
            elif searched == "wrong":
                given.found(f"{label}: searched with other results, though its size or its absence shows the damage")
            return
        if searched == "wrong":
            given.found(f"{label}: unseen by --verify, and results differ")
        elif not self._rows_are_equal(folder):
            given.found(f"{label}: unseen by --verify, and rows differ")
        elif TABLE not in file and not (damage == "removed" and _may_be_absent(file)):
            given.found(f"{label}: unseen by --verify, in a file of ours; results are equal")
        else:
            given.did(f"{kind}: unseen, every row, vector and ranking equal")

    def _searched(self, folder: Path, label: str) -> str:
        try:
            with np.errstate(all="ignore"):
                found = answers(folder, self.ids)
        except BaseException as error:
            if not is_sentence(error):
                self.given.found(f"{label}: searching raises {describe(error)}")
            return "refused"
        rankings = zip(found.rankings, *(each.rankings for each in self.right), strict=True)
        same = all(each in options or self._finds_more(each, options[0]) for each, *options in rankings)
        return "right" if same and found.texts == self.right[0].texts else "wrong"

    def _finds_more(self, found: Hits, sound: Hits) -> bool:
        """Return whether dense hits are those of a candidate index that has more candidates than the sound one.

        So it is where the codes of a fragment are passed over: all of its passages are candidates then.
        """
        if not self.exact or len(found) != len(self.exact):
            return False
        return all(map(_is_of_more, found, sound, self.exact))

    def _rows_are_equal(self, folder: Path) -> bool:
        try:
            return bool(PassageIndex.open(str(folder)).dataset.to_table().equals(self.rows))
        except (ValueError, OSError):
            return False


def _is_of_more(found: list[Hit], sound: list[Hit], exact: dict[str, float]) -> bool:
    """Return whether one query's hits have exact scores, and lack of the sound ones only what is worse than all."""
    ranks = [(-score, passage) for passage, score in found]
    lacking = {(-score, passage) for passage, score in sound} - set(ranks)
    right = all(score == exact.get(passage) for passage, score in found) and ranks == sorted(ranks)
    return right and len(found) >= len(sound) and all(lack > ranks[-1] for lack in lacking)


def _exact(folder: Path, count: int) -> list[dict[str, float]]:
    """Return the exact dense score of every passage for each query; none of an index without vectors."""
    index = PassageIndex.open(str(folder))
    if index.manifest.hidden_size is None:
        return []
    hits = open_dense(index, SearchOptions(index=str(folder)), _CPU).search(QUERIES, count)
    return [dict(own) for own in hits]


def answers(folder: Path, ids: list[str]) -> Answers:
    """Return what is found by the fastest ways that the index is ready for, and what it says of all passages."""
    vectors._load.cache_clear()  # noqa: SLF001 (codecs of other copies)
    index = PassageIndex.open(str(folder))
    texts = index.passages(ids)
    if index.manifest.hidden_size is None:
        return Answers(([Bm25Search(index).search(TEXTS, _K)],), texts)
    options = SearchOptions(index=str(folder))
    dense = open_dense(index, options, _CPU).search(QUERIES, _K)
    return Answers((dense, open_sparse(index, options).search(QUERIES, _K)), texts)


def problems(folder: Path) -> list[str]:
    """Return what `inspect_index.py --verify` says is wrong."""
    try:
        verification = inspect(PassageIndex.open(str(folder)), check=True).verification
    except ValueError as error:
        if not is_sentence(error):
            raise
        return [str(error)]
    assert verification is not None
    return [f"{problem.kind}: {problem.first}" for problem in verification.problems]


def is_sentence(error: BaseException) -> bool:
    """Return whether a job would print this error as a line, and the line was written for a person."""
    if isinstance(error, OSError):
        return error.filename is not None
    return isinstance(error, ValueError) and type(error).__module__.partition(".")[0] in {"builtins", "diffretriever"}


def describe(error: BaseException) -> str:
    """Return an error as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def apply(file: Path, damage: str, rng: random.Random) -> bool:
    """Damage a file; return whether that changed anything."""
    data = file.read_bytes()
    changed: bytes | None
    if damage == EXCHANGED:
        others = [f for f in file.parent.iterdir() if f.suffix == file.suffix and f.is_file() and f != file]
        others.sort(key=lambda other: (other.stat().st_mtime_ns, other.name))
        changed = rng.choice(others).read_bytes() if others else data
    else:
        changed = DAMAGES[damage](data, rng) if data else data
    if changed is None:
        file.unlink()
    else:
        file.write_bytes(changed)
    return changed != data


def _may_be_absent(file: str) -> bool:
    """Without checksums of deleted rows, `--verify` says how many files have none, as after a crash."""
    return Path(file).name in _MAY_BE_ABSENT or kind_of(file) == "deletions"


def kind_of(file: str) -> str:
    """Return what kind of file of an index this is, by its path."""
    parts = Path(file).parts
    return f"table {parts[1]}" if parts[0] == TABLE and len(parts) > 1 else parts[0]


def used_files(folder: Path) -> set[str]:
    """Return the files that the newest version is made of: all but those that only older versions have."""
    index = PassageIndex.open(str(folder))
    fragments = [fragment.metadata for fragment in index.fragments()]
    used = {f"{TABLE}/data/{file.path}" for fragment in fragments for file in fragment.files}
    for fragment in fragments:
        if fragment.deletion_file is not None:
            used.add(f"{TABLE}/{fragment.deletion_file.path(fragment.id)}")
    versions = f"{TABLE}/_versions"
    used |= {f"{versions}/{manifests_of(f'{folder}/{TABLE}')[index.version]}", f"{versions}/latest_version_hint.json"}
    return used | {f.relative_to(folder).as_posix() for f in folder.rglob("*") if TABLE not in f.parts}


def _changed(index: PassageIndex, total: int, rng: random.Random) -> list[str]:
    """Delete and replace some of the passages p0, p1 and so on; return the ids that are left."""
    ids = [f"p{number}" for number in range(total)]
    gone = rng.sample(ids, rng.randint(0, total // 4))
    if gone:
        index.delete(gone)
    left = [each for each in ids if each not in gone]
    if rng.random() < 0.5:
        again = rng.sample(left, 2)
        add(index, again, seed=rng.randrange(1000), replaced=again, text="changed")
    return left


def _filled(folder: Path, rng: random.Random) -> tuple[PassageIndex, list[str]]:
    sizes = [rng.randint(12, 40) for _ in range(rng.randint(1, 3))]
    index = fill(str(folder), *sizes)
    return index, _changed(index, sum(sizes), rng)


def _neural(folder: Path, rng: random.Random) -> list[str]:
    index, ids = _filled(folder, rng)
    if rng.random() < 0.7:
        prepare(index)
    accelerate(AccelerateJob(index=index.uri))
    return ids


def _packed(folder: Path, rng: random.Random) -> list[str]:
    index, ids = _filled(folder, rng)
    compressed(index, rng.choice(["product2", "product4"]))
    accelerate(AccelerateJob(index=index.uri))
    return ids


def _streamed(folder: Path, rng: random.Random) -> list[str]:
    """With nothing beside the table."""
    return _filled(folder, rng)[1]


def _bm25(folder: Path, rng: random.Random) -> list[str]:
    index = PassageIndex.create(str(folder), bm25_manifest(Bm25Retriever()))
    passages = rng.sample(PASSAGES, 40)
    Committer(index).commit({"all": write_block(index.uri, text_table(passages, "c"))}, [])
    index.delete([passages[0].id])
    Bm25Search(PassageIndex.open(index.uri))
    return [each.id for each in passages[1:]]


KINDS: dict[str, Callable[[Path, random.Random], list[str]]] = {
    "bm25": _bm25,
    "neural": _neural,
    "packed": _packed,
    "streamed": _streamed,
}
"""Make an index and return the ids of its passages."""
