"""Describe the topics of a collection by the tokens that its slots predict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from _entry import run

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
    found = describe(index, encoder_of(index, options), config)
    print(found.model_dump_json(indent=2) if config.json_output else "\n".join(_shown(found)))


def _shown(found: IndexDescription) -> Iterator[str]:
    yield f"{found.read:,} of {found.passages:,} passages of {found.index}, by {found.retriever}"
    yield "\nWhat slots say most often, with the part of the passages where they do:"
    for slot in found.slots:
        yield f"  slot {slot.slot}: {', '.join(f'{each.word} {each.share:.0%}' for each in slot.words)}"
    yield "\nTopics, with the part of the passages and the words that set them apart:"
    for number, topic in enumerate(found.topics, start=1):
        yield f"  {number}. {topic.share:.0%}: {', '.join(topic.words)}"
        yield f"     such as {'; '.join(example.title or example.id for example in topic.examples)}"


if __name__ == "__main__":
    run(DescribeJob, main)
