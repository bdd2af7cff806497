"""Training pairs from the docstrings of installed libraries: a summary line is the query, the rest its passage.

    python -m tools.docstrings --output docstrings.jsonl

The standard library is left out: its documentation is the built-in collection, which measures.
"""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

from diffretriever.collections import open_collection
from diffretriever.collections.pydoc import PYDOC, passages_and_summaries
from diffretriever.core.files import whole_file
from diffretriever.schemas.settings import JobConfig
from diffretriever.training.data.examples import are_in, keys_of, passage_key, text_key

_Documented: TypeAlias = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_PACKAGES = (
    "bm25s huggingface_hub lance lancedb matplotlib numba numpy peft pyarrow pydantic ray scipy torch tqdm transformers"
)
_SKIPPED_FOLDERS = frozenset({"__pycache__", "_vendor", "test", "testing", "tests", "thirdparty_files"})


class Docstrings(JobConfig):
    """Write the pairs in Tevatron's layout."""

    output: Path
    """File to write, .jsonl."""


def main(config: Docstrings) -> None:
    """Write the file."""
    docs = {name: doc for package in _PACKAGES.split() for name, doc in documented_in(_folder_of(package))}
    with whole_file(config.output) as stream:
        stream.writelines(json.dumps(pair, ensure_ascii=False).encode() + b"\n" for pair in docstring_pairs(docs))


def docstring_pairs(docs: dict[str, str]) -> Iterator[dict[str, object]]:
    """Yield a record for each docstring, of those by qualified name, whose summary asks for its rest alone.

    Which do is decided as for the built-in collection, and none of that collection's texts is among them.
    """
    known = keys_of([open_collection(PYDOC)])
    passages, summaries = passages_and_summaries(docs)
    for passage in passages:
        summary = summaries.get(passage.id)
        if summary is None or are_in((text_key(summary), passage_key(passage)), known).any():
            continue
        positive = {"docid": passage.id, "title": passage.title, "text": passage.text}
        yield {"query_id": f"summary:{passage.id}", "query": summary, "positive_passages": [positive]}


def documented_in(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield qualified name and cleaned docstring of all that is documented in a package's Python sources."""
    with warnings.catch_warnings():
        # Else a filter that makes errors of warnings would make other pairs.
        warnings.simplefilter("ignore")
        for path in sorted(folder.rglob("*.py")):
            inside = path.relative_to(folder.parent)
            if _SKIPPED_FOLDERS & set(inside.parts):
                continue
            try:
                tree = ast.parse(path.read_bytes())
            except (SyntaxError, ValueError):
                # Templates and sources for other interpreters.
                continue
            module = ".".join(inside.with_suffix("").parts).removesuffix(".__init__")
            yield from _documented(tree, module)


def _documented(node: _Documented, name: str) -> Iterator[tuple[str, str]]:
    doc = ast.get_docstring(node)
    if doc:
        # A literal may hold lone surrogates, which no file can.
        yield name, doc.encode("utf-8", "replace").decode()
    if isinstance(node, ast.Module | ast.ClassDef):
        for inner in node.body:
            if isinstance(inner, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield from _documented(inner, f"{name}.{inner.name}")


def _folder_of(package: str) -> Path:
    # Of a package that is not imported, this finds the place without importing it.
    spec = find_spec(package)
    assert spec is not None, f"{package} is required and installed"
    assert spec.submodule_search_locations, f"{package} is a package"
    return Path(spec.submodule_search_locations[0])


if __name__ == "__main__":
    main(Docstrings.from_command_line())
