"""Tiny random models as sentence-transformers, PyLate and Stanford's ColBERT publish them."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import MultiVectorEncoder, SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import AutoTokenizer, MistralConfig, MistralModel, Qwen3Config, Qwen3Model

from diffretriever.encoders import load_encoder
from diffretriever.encoders.library import LibraryEncoder
from diffretriever.schemas.retriever import BackboneConfig, LibraryRetriever
from diffretriever.testing.checkpoints import write_random_checkpoint

TEXTS = [
    "honey bees store water in winter",
    "A river of copper: 'water', honey and sand!",
    "river water",
    "🐝 honey 蜂蜜 e\u0301te\u0301",
    "a longer passage about winter, summer, rivers and the sea, in which bees eat honey; it has more words",
]
_DECODERS: dict[str, tuple[Any, Any]] = {"qwen3": (Qwen3Config, Qwen3Model), "mistral": (MistralConfig, MistralModel)}
_SIZE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def plain(kind: str, folder: Path) -> Path:
    """Write a checkpoint without `modules.json`: `bert`, `qwen3` or `mistral`."""
    if kind == "bert":
        return write_random_checkpoint("bert", folder, hidden_size=32)
    # Their own tokenizers cannot be made here: one with byte-level pieces stands for both.
    write_random_checkpoint("qwen2", folder, hidden_size=32)
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    tokenizer.chat_template = None
    torch.manual_seed(0)
    config_class, model_class = _DECODERS[kind]
    sizes = {**_SIZE, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": len(tokenizer)}
    config = config_class(**sizes, max_position_embeddings=512, architectures=[f"{kind.title()}ForCausalLM"])
    for file in folder.iterdir():
        file.unlink()
    model_class(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    change_json(folder / "config.json", architectures=[f"{kind.title()}ForCausalLM"])
    return folder


def published(kind: str, folder: Path, pooling: str, *, dense: bool = False, prompts: Any = None) -> Path:
    """Write a model with `modules.json`: transformer, pooling and perhaps a projection and normalisation."""
    transformer = _transformer(plain(kind, folder / "plain"))
    modules: list[Any] = [transformer, Pooling(32, pooling)]
    if dense:
        torch.manual_seed(1)
        modules += [Dense(32, 24), Normalize()]
    SentenceTransformer(modules=modules, prompts=prompts, device="cpu").save(str(folder / "model"))
    return folder / "model"


def late_interaction(kind: str, folder: Path, **expansion: Any) -> Path:
    """Write a ColBERT of `native`, `pylate` or `stanford` kind; `expansion` is the native kind's query expansion."""
    return {"native": _native, "pylate": _pylate, "stanford": _stanford}[kind](folder, expansion)


def _native(folder: Path, expansion: dict[str, Any]) -> Path:
    base = plain("bert", folder / "plain")
    torch.manual_seed(1)
    modules = [
        _transformer(base, query_length=24, document_length=16, query_expansion=expansion or None),
        Dense(32, 16, bias=False, activation_function=torch.nn.Identity(), module_input_name="token_embeddings"),
        MultiVectorMask(skiplist_words=list(string.punctuation)),
        Normalize(module_input_name="token_embeddings"),
    ]
    model = MultiVectorEncoder(modules=modules, prompts={"query": "query ", "document": "passage: "}, device="cpu")
    model.save(str(folder / "model"))
    return folder / "model"


def _pylate(folder: Path, _: Any) -> Path:
    model = _native(folder, {})
    tokenizer = AutoTokenizer.from_pretrained(str(model))
    tokenizer.add_tokens(["[Q] ", "[D] "])
    tokenizer.save_pretrained(model)
    network = Transformer(str(model)).model
    network.resize_token_embeddings(len(tokenizer))
    network.save_pretrained(model)
    (model / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 31, "do_lower_case": False}))
    modules = json.loads((model / "modules.json").read_text())[:2]
    modules[1]["type"] = "pylate.models.Dense.Dense"
    (model / "modules.json").write_text(json.dumps(modules))
    settings = {"model_type": "ColBERT", "query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 12}
    lists = {"document_length": 14, "attend_to_expansion_tokens": False, "skiplist_words": [",", "honey"]}
    (model / "config_sentence_transformers.json").write_text(json.dumps(settings | lists))
    return model


def _stanford(folder: Path, _: Any) -> Path:
    plain("bert", folder)
    # Entries of BERT's vocabulary that its tokenizer never makes by itself.
    for file in (folder / "vocab.txt", folder / "tokenizer.json"):
        file.write_text(file.read_text().replace("##iz", "[unused0]").replace("##uz", "[unused1]"))
    (folder / "artifact.metadata").write_text(json.dumps({"query_maxlen": 12, "doc_maxlen": 14}))
    change_json(folder / "config.json", architectures=["HF_ColBERT"])
    tensors = {name if name.startswith("bert.") else f"bert.{name}": t for name, t in _tensors(folder).items()}
    torch.manual_seed(2)
    save_file(tensors | {"linear.weight": torch.randn(16, 32)}, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _tensors(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def _transformer(folder: Path, **fields: Any) -> Transformer:
    states = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
    return Transformer(str(folder), modality_config=states, module_output_name="token_embeddings", **fields)


def change_json(file: Path, **fields: Any) -> None:
    """Overwrite fields of a JSON file."""
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def encoder_of(folder: Path, **fields: Any) -> LibraryEncoder:
    """The encoder over a folder in fp32."""
    place = BackboneConfig(source=str(folder), dtype="float32")
    found = load_encoder(LibraryRetriever(backbone=place, **fields), "cpu")
    assert isinstance(found, LibraryEncoder)
    return found
