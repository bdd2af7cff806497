"""Figure 2: a drawing of the method, in which nothing is measured."""

from __future__ import annotations

from diffretriever.studies.reproduction.exhibits.base import Exhibit, Findings, Shown

_METHOD = (
    "A drawing, without numbers: the prompt of a query ends in K_q masked positions and that of a passage in K_p; one "
    "bidirectional forward pass reads all of them; their hidden states are scored by MaxSim, their logits as sparse "
    "vectors, and the hybrid score is made of both. encoders/masked.py does the first half, vectors/ the second."
)


class Overview(Exhibit):
    """Needs no results."""

    def show(self, findings: Findings) -> Shown:
        """Say what the paper draws."""
        return Shown([_METHOD])
