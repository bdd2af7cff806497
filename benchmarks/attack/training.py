"""Training, killed and given again: the same adapter, bit for bit."""

from __future__ import annotations

from pathlib import Path

from benchmarks.attack.killed import KilledJobAttack, different_files, write_model
from tests.training.made_up_collection import write_training_data

_STEPS, _EVERY = 24, 3


class TrainingAttack(KilledJobAttack):
    """Kill `jobs/train.py`."""

    name = "training"
    script = "train"

    def prepare(self, folder: Path) -> None:
        """Write a training set and a random model."""
        write_training_data(folder, 64)
        write_model(folder, hidden_size=32)

    def flags(self, inputs: Path, output: Path) -> list[str]:
        """Train one worker for a few steps, with a checkpoint every three."""
        options = {
            "--train": inputs / "training-set",
            "--retriever": inputs / "retriever.yaml",
            "--budget": "q2p3",
            "--output": output,
            "--workers": 1,
            "--cpus-per-worker": 0.9,
            "--checkpoint-every": _EVERY,
            "--max-steps": _STEPS,
            "--batch-queries": 8,
            "--queries-per-device": 2,
            "--hard-negatives": 2,
            "--learning-rate": 0.003,
            "--temperature": 0.1,
            "--ray-address": "local",
        }
        return [str(part) for pair in options.items() for part in pair]

    def difference(self, expected: Path, output: Path) -> str | None:
        """Compare the adapters' weights."""
        return different_files(expected, output, ["adapter/*.safetensors"])
