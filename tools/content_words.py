"""What the filters of content words keep of a collection's texts in a vocabulary: a table in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import DirectoryPath, PositiveInt

from diffretriever.evaluation.formats.tables import Cell, markdown_table
from diffretriever.schemas.retriever import CONTENT_WORDS, ContentWordsConfig
from diffretriever.schemas.settings import JobConfig

COLUMNS = ("vocabulary", "texts", "filter", "words kept", "texts with none", "entries a text")


class ContentWordsJob(JobConfig):
    """Print, for each filter of content words, how many of them it keeps, and how many texts it leaves without any."""

    tokenizer: DirectoryPath
    """Folder with the `tokenizer.json` of a checkpoint."""
    collection: tuple[str, ...]
    """Collections, as encode_beir.py takes them; repeat the flag for several."""
    split: str = "test"
    """Split of the queries."""
    passages: PositiveInt = 2000
    """Passages of each collection that are read, its first ones."""


def main(config: ContentWordsJob) -> None:
    """Print the table."""
    from diffretriever.backbones.vocabulary import load_tokenizer_json
    from diffretriever.collections import open_collection
    from diffretriever.collections.records import Passage

    tokenizer = load_tokenizer_json(config.tokenizer)
    rows: list[list[Cell]] = []
    for source in config.collection:
        collection = open_collection(source)
        queries = [query.text for query in collection.queries(config.split)]
        passages = (record for record in collection.records() if isinstance(record, Passage))
        texts = [f"{p.title} {p.text}" for p, _ in zip(passages, range(config.passages), strict=False)]
        for what, read in ((f"queries of {collection.name}", queries), (f"passages of {collection.name}", texts)):
            rows += ([config.tokenizer.name, f"{len(read):,} {what}", *cells] for cells in kept(tokenizer, read))
    print(markdown_table(rows, COLUMNS))


def kept(tokenizer: Any, texts: Iterable[str]) -> Iterator[list[Cell]]:
    """Yield for each filter its name, the share of words of which it keeps an entry, of texts without, the entries.

    A word counts once in every text that has it.
    """
    from diffretriever.encoders.preparer import ContentWords, content_words

    words_of = [content_words(text) for text in texts]
    total = sum(map(len, words_of))
    for name in CONTENT_WORDS:
        read = ContentWords(tokenizer, ContentWordsConfig.model_validate(name))
        entries = {word: len(read(word)[0]) for words in words_of for word in words}
        found = sum(entries[word] > 0 for words in words_of for word in words)
        counts = [len(read(" ".join(words))[0]) for words in words_of]
        empty = sum(count == 0 for count in counts)
        yield [
            name, f"{found / max(1, total):.1%}", f"{empty / len(counts):.1%}", f"{sum(counts) / len(counts):.1f}",
        ]  # fmt: skip


if __name__ == "__main__":
    main(ContentWordsJob.from_command_line())
