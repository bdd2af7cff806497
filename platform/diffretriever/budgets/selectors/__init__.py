"""Selectors of K_q behind one interface. Adding one is a file here and a line in `open_selector`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from diffretriever.budgets.features import check_names
from diffretriever.budgets.selectors.base import Selector
from diffretriever.budgets.selectors.fixed import FixedSelector
from diffretriever.budgets.selectors.learned import LearnedSelector
from diffretriever.budgets.selectors.rule import DEFAULT_BUDGETS, RuleSelector
from schemas.selector import LearnedSelectorArtefact

__all__ = ["FixedSelector", "LearnedSelector", "RuleSelector", "Selector", "load_artefact", "open_selector"]


def open_selector(source: str, fingerprint: str, budgets: Sequence[int] = DEFAULT_BUDGETS) -> Selector:
    """Return the selector that `source` names.

    Args:
        source: `fixed:4` for K_q = 4 always, `rule` for the default rule, or the file of a fitted selector.
        fingerprint: of the encoder that will encode the queries, as queries depend on it.
        budgets: K_q that the rule may choose.

    Raises:
        ValueError: no such selector or file, or one that was fitted for another encoder.
    """
    kind, _, number = source.partition(":")
    if kind == "fixed" and number.isascii() and number.isdecimal():
        return FixedSelector(int(number))
    if source == "rule":
        return RuleSelector(budgets)
    if not Path(source).is_file():
        raise ValueError(f"no selector '{source}': give 'rule', 'fixed:4' or the file that jobs/fit_selector.py wrote")
    artefact = load_artefact(Path(source))
    if artefact.fingerprint != fingerprint:
        raise ValueError(
            f"{source} was fitted for encoder {artefact.fingerprint} ({artefact.retriever}), but {fingerprint} is to "
            "encode the queries: fit a selector on a sweep of this encoder"
        )
    return LearnedSelector(artefact)


def load_artefact(path: Path) -> LearnedSelectorArtefact:
    """Read the JSON of a fitted selector.

    Raises:
        ValueError: it is malformed, or names a feature that does not exist; the message names the file.
    """
    try:
        artefact = LearnedSelectorArtefact.model_validate_json(path.read_text("utf-8"))
        check_names(feature.name for feature in artefact.features)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise ValueError(f"{path} is no fitted selector: {place}: {first['msg']}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return artefact
