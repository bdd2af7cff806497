"""The encode pipeline on a local Ray: exactly once, append, replace, bad input, lost actors."""

from __future__ import annotations

import json
import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from diffretriever.backbones.loader import load_vocabulary
from diffretriever.collections import BadInputError, open_collection
from diffretriever.index.table import PassageIndex
from diffretriever.pipelines.encode import encode_collection
from tests.index.index_cases import ids_of
from tests.pipelines.corpora import JobMaker, line, write_corpus
from tests.warm.warm_python import SERVER

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]


def numbered(number: int, text: str | None = None) -> str:
    """A line with metadata."""
    return json.dumps({**json.loads(line(number, text)), "n": number})


def test_encode_again_append_and_replace(tmp_path: Path, make_job: JobMaker) -> None:
    first = write_corpus(tmp_path / "first", [numbered(i) for i in range(70)])
    summary = encode_collection(make_job(first))
    assert (summary.encoded, summary.rows, summary.bad) == (70, 70, 0)
    assert summary.device_share is not None
    assert 0 < summary.device_share <= 1
    assert summary.peak_memory is not None
    assert summary.peak_memory > 1 << 20
    index = PassageIndex.open(make_job(first).index)
    assert index.contents().fragments == 1
    encoded_at = index.version

    again = encode_collection(make_job(first))
    assert (again.encoded, again.already_there, again.rows) == (0, 70, 70)
    index.refresh()
    assert index.version == encoded_at

    second = write_corpus(tmp_path / "second", [numbered(i) for i in range(60, 90)])
    appended = encode_collection(make_job(second))
    assert (appended.encoded, appended.already_there, appended.rows) == (20, 10, 90)
    index.refresh()
    assert index.contents().collections == {"first": 70, "second": 20}

    changed = write_corpus(tmp_path / "first", [numbered(i, "another text" if i < 5 else None) for i in range(70)])
    with pytest.raises(ValueError, match=r"5 passages are in .* with another text or other metadata \('p0', .*'p4'\)"):
        encode_collection(make_job(changed))
    skipped = encode_collection(make_job(changed, on_existing="skip"))
    assert (skipped.encoded, skipped.skipped, skipped.rows) == (0, 5, 90)
    replaced = encode_collection(make_job(changed, on_existing="replace"))
    assert (replaced.encoded, replaced.replaced, replaced.rows) == (5, 5, 90)
    index.refresh()
    assert index.passages(["p3"])["p3"]["text"] == "another text"
    assert len(ids_of(index)) == 90
    assert {name: each["metadata"] for name, each in index.passages(["p3", "p89"]).items()} == {
        "p3": {"n": 3},
        "p89": {"n": 89},
    }


def test_a_large_file_is_read_in_parts(tmp_path: Path, make_job: JobMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffretriever.collections.base._PART_BYTES", 500)

    def typed(number: int, text: str | None = None) -> str:
        """Of the last parts alone are numbers that are no integers."""
        return json.dumps({**json.loads(line(number, text)), "n": number if number < 80 else number + 0.5})

    corpus = write_corpus(tmp_path / "corpus", [typed(i) for i in range(90)])
    assert len(open_collection(str(corpus)).parts()) > 5
    job = make_job(corpus, retriever="bm25", backbone=None)
    assert encode_collection(job).encoded == 90
    assert encode_collection(job).already_there == 90
    assert sorted(ids_of(PassageIndex.open(job.index))) == sorted(f"p{i}" for i in range(90))
    assert PassageIndex.open(job.index).passages(["p3"])["p3"]["metadata"] == {"n": 3.0}
    write_corpus(corpus, [typed(i, "changed" if i in (3, 80) else None) for i in range(90)])
    with pytest.raises(ValueError, match=r"2 passages are in .* with another text or other metadata \('p3', 'p80'\)"):
        encode_collection(job)
    write_corpus(corpus, [*(typed(i) for i in range(90)), typed(0)])
    with pytest.raises(ValueError, match=r"corpus.jsonl:91: duplicate id: 'p0' is first on line 1"):
        encode_collection(job)


def test_bad_input_is_rejected_before_encoding(tmp_path: Path, make_job: JobMaker) -> None:
    corpus = write_corpus(tmp_path / "bad", [*(line(i) for i in range(20)), "{broken", line(3), '{"_id": "x y"}'])
    with pytest.raises(BadInputError, match=r"corpus.jsonl:21: .*JSON"):
        encode_collection(make_job(corpus))
    assert not PassageIndex.exists(make_job(corpus).index)


def test_bad_input_is_quarantined_and_counted(tmp_path: Path, make_job: JobMaker) -> None:
    lines = [
        line(0),
        "{broken",
        line(1),
        line(0),
        '{"_id": "x y", "text": "t"}',
        '{"_id": "z"}',
        '{"_id": "e", "text": ""}',
    ]
    corpus = write_corpus(
        tmp_path / "bad", [*lines, json.dumps({"_id": 'it\'s"q"', "text": "ids with quotes are fine"})]
    )
    with (corpus / "corpus.jsonl").open("ab") as stream:
        stream.write(b'{"_id": "u", "text": "\xff\xfe"}\n' + b'{"_id": "long", "text": "' + b"x" * 2_000_000 + b'"}\n')
    summary = encode_collection(make_job(corpus, on_bad_input="quarantine"))
    assert (summary.encoded, summary.bad) == (3, 7)
    assert sum(summary.bad_reasons.values()) == 7
    assert summary.quarantine is not None
    kept = [json.loads(text) for text in Path(summary.quarantine).read_text("utf-8").splitlines()]
    assert [row["line"] for row in kept] == [2, 4, 5, 6, 7, 9, 10]
    assert sorted(ids_of(PassageIndex.open(summary.index))) == ['it\'s"q"', "p0", "p1"]


def test_passages_that_encode_to_nan_are_rejected_or_quarantined(
    tmp_path: Path, make_job: JobMaker, checkpoint: Path
) -> None:
    """A letter whose embedding is NaN spoils the texts that have it."""
    spoilt = _without_embedding(checkpoint, tmp_path / "spoilt", "Z")
    lines = [line(i, "a wing of Z" if i in (9, 41) else None) for i in range(60)]
    job = make_job(write_corpus(tmp_path / "corpus", lines), backbone=str(spoilt))
    for _ in range(2):
        with pytest.raises(ValueError, match=r"'corpus': passage.* 'p(9|41)'.* would be stored with NaN .*quarantine"):
            encode_collection(job)
        assert not {"p9", "p41"} & set(ids_of(PassageIndex.open(job.index)))
    assert len(PassageIndex.open(job.index)) >= 15
    summary = encode_collection(job.model_copy(update={"on_bad_input": "quarantine"}))
    assert (summary.bad, summary.bad_reasons, summary.rows) == (2, {"not finite": 2}, 58)
    assert summary.quarantine is not None
    kept = [json.loads(text) for text in Path(summary.quarantine).read_text("utf-8").splitlines()]
    assert [(row["line"], row["reason"].partition(":")[0]) for row in kept] == [(10, "not finite"), (42, "not finite")]
    assert [json.loads(row["raw"])["id"] for row in kept] == ["p9", "p41"]


def _without_embedding(checkpoint: Path, folder: Path, letter: str) -> Path:
    shutil.copytree(checkpoint, folder)
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    vocabulary = load_vocabulary(str(checkpoint))
    (token,) = vocabulary.tokenizer.encode(letter, add_special_tokens=False)
    tensors["model.transformer.wte.weight"][token] = torch.nan
    save_file(tensors, file, {"format": "pt"})
    return folder


def test_blocks_of_a_killed_encoder_are_encoded_again(tmp_path: Path, make_job: JobMaker) -> None:
    corpus = write_corpus(tmp_path / "corpus", [line(i, "long text " * 100) for i in range(400)])
    job, killed, ended = make_job(corpus), threading.Event(), threading.Event()
    killer = threading.Thread(target=_kill_an_encoder, args=(job.index, killed, ended))
    killer.start()
    try:
        summary = encode_collection(job)
    finally:
        ended.set()
        killer.join()
    assert killed.is_set()
    assert (summary.encoded, summary.rows) == (400, 400)
    assert len(ids_of(PassageIndex.open(summary.index))) == 400


def _kill_an_encoder(index: str, killed: threading.Event, ended: threading.Event) -> None:
    """Kill one of the encoders of this process's Ray once something is committed."""
    server = psutil.Process(int(os.environ[SERVER]))
    while not ended.wait(0.1):
        if not PassageIndex.exists(index) or not len(PassageIndex.open(index)):
            continue
        for process in server.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if "MapWorker" in " ".join(process.cmdline()):
                    process.kill()
                    killed.set()
                    return


def test_a_missing_backbone_is_a_value_error(tmp_path: Path, make_job: JobMaker) -> None:
    corpus = write_corpus(tmp_path / "corpus", [line(0)])
    with pytest.raises(ValueError, match=r"^backbone folder '/nowhere' does not exist"):
        encode_collection(make_job(corpus, backbone="/nowhere"))
