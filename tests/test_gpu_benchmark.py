"""benchmarks.gpu runs on a CPU with tiny models; compiling, which takes half a minute, is left out."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import loops
from benchmarks.gpu.__main__ import GpuBenchmark, main
from benchmarks.gpu.models import encoder_over, made, retriever_of, texts_of
from diffretriever.backbones.flops import reached_flops

_FORMS = ("padded", "similar", "packed", "float8")


def _here(module: str, function: str, **arguments: Any) -> Any:
    """Call in this process instead of a child; arguments and results pass through JSON as there."""
    return json.loads(json.dumps(getattr(import_module(module), function)(**json.loads(json.dumps(arguments)))))


def test_all_parts_but_training_report_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "in_child", _here)
    # On a busy machine the measured peak can be below a model's rate.
    monkeypatch.setattr(loops, "reached_flops", lambda *place: 1e6 * reached_flops(*place))
    monkeypatch.setattr(command, "_SHAPES", {"tiny": ((30, 4, 16),)})
    config = GpuBenchmark(
        device="cpu",
        size="tiny",
        parts=("equality", "encoding", "queries", "job", "search", "profile"),
        backbones=("dream", "qwen2"),
        forms=_FORMS,
        lengths=(20,),
        slots=(2,),
        tokens=600,
        passages=8,
        queries=2,
        output=tmp_path / "gpu.json",
    )
    main(config)
    written = json.loads((tmp_path / "gpu.json").read_text("utf-8"))
    assert not written["left_out"]
    results = written["results"]
    (equal,) = [rows for name, rows in results.items() if name.startswith("equality")]
    for row in equal:
        least = {"float32, device to CPU": 0.999_99, "float8 to CPU": 0.9}
        assert all(value > least.get(name, 0.99) for name, value in row.items() if name != "family"), row
    for family in ("dream", "qwen2"):
        rows = results[f"encoding, {family}"]
        assert [row["form"] for row in rows] == list(_FORMS)
        assert all(row["passages/s"] > 0 and 0 < row["utilisation"] < 1 for row in rows)
    assert len(results["queries"]) == 5
    assert [row["name"] for row in results["encode job"]] == ["the encoder alone", "the job", "ratio"]
    assert len(results["search"]) == 2
    wholes = [row["what"] for row in results["profile"] if row["where"] == "all"]
    assert wholes == ["a query by PromptReps", "a query by slots", "passages, packed"]
    assert any(row["name"] == "aten::addmm" for row in results["profile"])
    assert "dense bfloat16 products reach" in capsys.readouterr().out


def test_parts_beyond_the_time_limit_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "in_child", _here)
    main(GpuBenchmark(device="cpu", size="tiny", parts=("equality", "search"), minutes=1e-9))
    assert (
        "left out, the minutes were over: equality: least cosine of two vectors of a text, search"
        in capsys.readouterr().out
    )


def test_texts_have_the_requested_lengths(tmp_path: Path) -> None:
    backbone = made("dream", "tiny", tmp_path, "cpu")
    encoder = encoder_over(backbone, retriever_of("masked", tmp_path, budget="q4p16"))
    texts = texts_of(encoder, 150, 40_000)
    assert sum(len(text.input_ids) for text in texts) >= 40_000
    assert 130 < sum(text.n_tokens for text in texts) / len(texts) < 170
    (short,) = encoder.preparer.prepare_passages([""], ["a"])
    around = len(short.input_ids) - short.n_tokens
    assert all(len(text.input_ids) == text.n_tokens + around for text in texts)
