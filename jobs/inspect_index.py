"""Say what is in an index."""

from __future__ import annotations

import json

import yaml
from _entry import run

from schemas.jobs import InspectJob


def main(config: InspectJob) -> None:
    """Print the manifest and the counts, all read from the table itself."""
    from diffretriever.index.table import PassageIndex

    index = PassageIndex.open(config.index)
    shown = {
        "index": config.index,
        "fingerprint": index.manifest.fingerprint,
        "contents": index.contents().model_dump(mode="json"),
        "manifest": index.manifest.model_dump(mode="json"),
    }
    print(json.dumps(shown, indent=2) if config.json_output else yaml.safe_dump(shown, sort_keys=False).rstrip())


if __name__ == "__main__":
    run(InspectJob, main)
