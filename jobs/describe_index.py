"""Describe the topics of a collection by the tokens that its slots predict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from _entry import run

from diffretriever.schemas.base import counted
from diffretriever.studies.topics_config import DescribeJob

if TYPE_CHECKING:
    from diffretriever.studies.topics_config import IndexDescription


def main(config: DescribeJob) -> None:
    """Print the terms that the slots of the index's passages predict, and its topics."""
    from diffretriever.index.table import PassageIndex
    from diffretriever.schemas.search import SearchOptions
    from diffretriever.search import encoder_of
    from diffretriever.studies.topics import check_readable, describe

    index = PassageIndex.open(config.index)
    check_readable(index)
    options = SearchOptions(index=config.index, backbone=config.backbone, adapter=config.adapter, device=config.device)
    description = describe(index, encoder_of(index, options), config)
    print(description.model_dump_json(indent=2) if config.json_output else "\n".join(_lines(description)))


def _lines(description: IndexDescription) -> Iterator[str]:
    passages = counted(description.passages, "passages")
    yield f"{description.read:,} of {passages} of {description.index}, by {description.retriever}"
    yield "\nTokens that each slot predicts most often, with their share of the passages:"
    for slot in description.slots:
        yield f"  slot {slot.slot}: {', '.join(f'{word.word} {word.share:.0%}' for word in slot.words)}"
    yield "\nTopics, with their share of the passages and their distinctive words:"
    for number, topic in enumerate(description.topics, start=1):
        yield f"  {number}. {topic.share:.0%}: {', '.join(topic.words)}"
        yield f"     such as {'; '.join(example.title or example.id for example in topic.examples)}"


if __name__ == "__main__":
    run(DescribeJob, main)
