"""Figure 9: index storage against corpus size, the paper's eight corpora and our arithmetic."""

from __future__ import annotations

from diffretriever.collections.beir import PUBLISHED_PASSAGES
from diffretriever.evaluation.figures import BLUE, MUTED, ORANGE, headed_figure, png, quiet
from diffretriever.studies.reproduction.config import PublishedRow
from diffretriever.studies.reproduction.exhibits.base import Exhibit, Findings, Shown
from diffretriever.studies.reproduction.sizes import corpus_of, index_size
from diffretriever.studies.reproduction.tables import BEIR7, load_table

_GIB = 1 << 30
_CAPTION = (
    "Index storage against the number of passages. Marks: the paper's sizes of all eight corpora (its table of "
    "compressed indexes), hollow for one representation, filled for several; lines: ours by arithmetic, 79 % of bf16. "
    "Dotted: the mean size of the seven BEIR corpora, and MS MARCO; dashed: what MS MARCO takes."
)


class IndexStorage(Exhibit):
    """Needs no results: sizes follow from numbers of vectors."""

    def show(self, findings: Findings) -> Shown:
        """Draw it."""
        return self.picture(findings, _CAPTION, draw_storage())


def draw_storage() -> bytes:
    """Return a PNG."""
    subtitle = "GiB of dense vectors; marks: the paper, lines: ours by arithmetic"
    figure = headed_figure(7.2, 4.9, "Index storage by corpus size", subtitle)
    panel = figure.subplots()
    quiet(panel, "y")
    styles = {"Dream": (BLUE, "o", "-"), "LLaDA": (ORANGE, "s", "--")}
    for row in load_table("compressed-storage").rows:
        colour, marker, line = styles[row.backbone or ""]
        sizes = _published_sizes(row)
        many = "multi" in row.variant
        xs = [PUBLISHED_PASSAGES[corpus] for corpus in sizes]
        panel.plot(
            xs, list(sizes.values()), marker, color=colour, markerfacecolor=colour if many else "white", markersize=6,
            label=f"{row.backbone} {row.variant}", zorder=4,
        )  # fmt: skip
        ours = sorted((PUBLISHED_PASSAGES[corpus_of(c)], index_size(row, c).zstd / _GIB) for c in row.figures)
        panel.plot([x for x, _ in ours], [y for _, y in ours], line, color=colour, linewidth=1.2, alpha=0.8, zorder=3)
        on_msmarco = sizes["msmarco"]
        panel.axhline(on_msmarco, color=colour, linewidth=0.7, linestyle=(0, (5, 4)), alpha=0.6, zorder=2)
        panel.annotate(
            f"{on_msmarco:g} GiB",
                (PUBLISHED_PASSAGES["scifact"], on_msmarco),
                (0, 2 if row.backbone == "LLaDA" else -10),
            textcoords="offset points", fontsize=8, color=colour,
        )  # fmt: skip
    mean = sum(PUBLISHED_PASSAGES[name] for name in BEIR7) / len(BEIR7)
    for x, text in ((mean, "BEIR-7 mean"), (PUBLISHED_PASSAGES["msmarco"], "MS MARCO")):
        panel.axvline(x, color=MUTED, linewidth=1, linestyle=":", zorder=1)
        panel.annotate(text, (x, 0.03), (-3, 0), xycoords=("data", "axes fraction"), textcoords="offset points",
                       rotation=90, ha="right", fontsize=8, color=MUTED)  # fmt: skip
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlabel("passages", fontsize=9.5)
    panel.set_ylabel("GiB", fontsize=9.5)
    panel.yaxis.set_major_formatter("{x:g}")
    panel.legend(loc="lower left", frameon=False, fontsize=8.5, bbox_to_anchor=(0.43, 0.02))
    return png(figure)


def _published_sizes(row: PublishedRow) -> dict[str, float]:
    sizes = {}
    for collection, modes in row.figures.items():
        dense = modes["dense"]
        gib, mib = dense.get("GiB"), dense.get("MiB")
        sizes[corpus_of(collection)] = gib if gib is not None else (mib or 0.0) / 1024
    return sizes
