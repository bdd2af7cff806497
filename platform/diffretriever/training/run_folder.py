"""The folder of one training: what it is of, its curve, and the adapter in the end. One folder, one training."""

from __future__ import annotations

import shutil
from pathlib import Path

import yaml

from diffretriever.files import whole_folder, write_text
from diffretriever.training.saving import ADAPTER, check_trained
from schemas.retriever import BackboneRetriever
from schemas.training import TrainJob
from schemas.training_manifest import MANIFEST_FILE, TrainingManifest


class RunFolder:
    """Files of a training.

    Attributes:
        path: the folder.
        checkpoints: Ray's folder of checkpoints in it.
        adapter: the trained adapter, there only once the training has ended.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.checkpoints = self.path / "checkpoints"
        self.adapter = self.path / ADAPTER
        self._begun = self.path / "run.json"

    @property
    def finished(self) -> bool:
        """Whether the training has ended."""
        return self.adapter.is_dir()

    def begin(self, manifest: TrainingManifest, job: TrainJob) -> TrainingManifest:
        """Claim the folder for this training, or find that it is its own already.

        Raises:
            ValueError: another training has been here; the message names the fields that differ.
        """
        if self._begun.is_file():
            begun = TrainingManifest.model_validate_json(self._begun.read_text("utf-8"))
            if differing := begun.differences(manifest):
                raise ValueError(
                    f"{self.path} holds another training (there != this one):\n  " + "\n  ".join(differing) + "\n"
                    "Give another --output, or the same settings to go on with it."
                )
            return begun
        self.path.mkdir(parents=True, exist_ok=True)
        write_text(self.path / "train.yaml", job.to_yaml())
        write_text(self._begun, manifest.model_dump_json(indent=2) + "\n")
        return manifest

    def with_dtype(self, retriever: BackboneRetriever) -> BackboneRetriever:
        """Return the retriever in the precision that the training here was begun in, if its own is `auto`."""
        if retriever.backbone.dtype != "auto" or not self._begun.is_file():
            return retriever
        begun = TrainingManifest.model_validate_json(self._begun.read_text("utf-8")).retriever
        assert isinstance(begun, BackboneRetriever), "only these are trained"
        place = retriever.backbone.model_copy(update={"dtype": begun.backbone.dtype})
        return retriever.model_copy(update={"backbone": place})

    def finish(self, checkpoint: Path) -> TrainingManifest:
        """Copy the adapter of the last checkpoint, and write `retriever.yaml`, which encodes with it.

        Raises:
            ValueError: the copy is not a trained adapter.
        """
        with whole_folder(self.adapter) as folder:
            shutil.copytree(checkpoint / ADAPTER, folder, dirs_exist_ok=True)
            check_trained(folder, self._manifest(folder).step)
        manifest = self._manifest(self.adapter)
        retriever = manifest.retriever.model_dump(mode="json", exclude_defaults=True) | {
            "method": manifest.retriever.method
        }
        retriever["backbone"]["adapter"] = str(self.adapter)
        write_text(self.path / "retriever.yaml", yaml.safe_dump(retriever, sort_keys=False))
        return manifest

    def result(self) -> TrainingManifest:
        """Return what the finished training says of itself."""
        return self._manifest(self.adapter)

    def _manifest(self, adapter: Path) -> TrainingManifest:
        return TrainingManifest.model_validate_json((adapter / MANIFEST_FILE).read_text("utf-8"))
