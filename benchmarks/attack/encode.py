"""Encoding, killed and given again: the same ids, texts, vectors and impacts, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import yaml

from benchmarks.attack.killed import KilledJobAttack
from diffretriever.index.table import PassageIndex
from diffretriever.presets import load_retriever
from diffretriever.schemas.index import ROW_CHECKSUM
from diffretriever.search.inspection import inspect
from diffretriever.testing.checkpoints import write_random_checkpoint
from tests.pipelines.corpora import line, write_corpus

PASSAGES = 400
_ROWS_PER_BLOCK = 16


class EncodeAttack(KilledJobAttack):
    """Kill `jobs/encode_beir.py`."""

    name = "encode"
    script = "encode_beir"

    def prepare(self, folder: Path) -> None:
        """Write a corpus and a random model."""
        write_corpus(folder / "corpus", [line(number) for number in range(PASSAGES)])
        place = write_random_checkpoint("llada", folder / "llada", hidden_size=64)
        retriever = load_retriever("diffretriever-llada", str(place)).model_dump(mode="json")
        # On a busy machine, the probe of `auto` may choose another precision.
        retriever["backbone"]["dtype"] = "float32"
        (folder / "retriever.yaml").write_text(yaml.safe_dump(retriever), "utf-8")

    def flags(self, inputs: Path, output: Path) -> list[str]:
        """Encode the corpus with one encoder, on a Ray of the job's own."""
        options = {
            "--collection": inputs / "corpus",
            "--index": output,
            "--retriever": inputs / "retriever.yaml",
            "--encoders": 1,
            "--rows-per-block": _ROWS_PER_BLOCK,
        }
        return [str(part) for pair in options.items() for part in pair]

    def difference(self, expected: Path, output: Path) -> str | None:
        """Compare all columns of both tables, passages by id, and verify what was resumed."""
        ours, theirs = _rows(output), _rows(expected)
        ids = [table.column("id").to_pylist() for table in (ours, theirs)]
        if ids[0] != ids[1]:
            return f"{len(ids[0])} passages, {len(set(ids[0]))} ids, in place of {len(ids[1])}"
        wrong = [name for name in theirs.schema.names if not ours.column(name).equals(theirs.column(name))]
        if wrong:
            return f"columns {', '.join(wrong)}"
        verification = inspect(PassageIndex.open(str(output)), check=True).verification
        assert verification is not None
        return "; ".join(f"--verify: {p.kind}: {p.first}" for p in verification.problems) or None


def _rows(folder: Path) -> pa.Table:
    table = PassageIndex.open(str(folder)).dataset.to_table().sort_by("id").combine_chunks()
    return table.drop_columns([ROW_CHECKSUM])
