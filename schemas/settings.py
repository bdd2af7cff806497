"""Base classes of job configs. Flags override environment variables, which override the YAML file."""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NoReturn, Self, Union, get_args, get_origin

import yaml
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt, ValidationError
from pydantic.fields import FieldInfo

from diffretriever.schemas.base import Model, error_messages, refuse_unknown_keys, suggest
from diffretriever.schemas.language import AUTO, LanguageChoice
from diffretriever.schemas.locations import IS_PATH, plain_location

_VALUES = {
    "int": "N",
    "float": "X",
    "str": "TEXT",
    "Path": "PATH",
    "StorePath": "PATH",
    "Budget": "qNpN",
    "CodecConfig": "CODEC",
}
"""Name of a type → its placeholder in `--help`."""
_GROUPS = ("options", "input", "retriever", "index", "search", "Ray")
"""Groups of flags in `--help`, in this order: a base of a job names its group before the colon of its docstring."""
TRUST_VARIABLE = "DIFFRETRIEVER_TRUST_CODE"
"""Environment variable with the models that may run their own code, separated by commas."""
_TRUST = (
    "Model that may run its own Python code, if the retriever sets `remote_code: true`: a hub id, ID@REVISION, or a "
    "folder that begins with `/`, `./`, `../` or `~`. Repeat the flag for several models. Only this flag and the "
    f"variable {TRUST_VARIABLE} give the permission; files, presets and indexes cannot."
)
_HIDDEN_DEFAULTS: tuple[Any, ...] = (None, (), {}, "", False)
"""Defaults that `--help` leaves out."""


class JobConfig(Model):
    """Base of job configs. Each field is a flag, and the docstring below it is the help text."""

    @classmethod
    def from_command_line(cls, arguments: Sequence[str] | None = None, examples: Sequence[str] = ()) -> Self:
        """Build the config, or print the errors and exit with status 2.

        Args:
            arguments: flags and values; default: `sys.argv`.
            examples: command lines that `--help` shows at its end.
        """
        try:
            namespace, unknown = _parser(cls, examples).parse_known_args(arguments)
            if unknown:
                flag = unknown[0].partition("=")[0]
                _fail(f"unknown flag {flag}.{suggest(flag, [*map(_flag, cls.model_fields), '--config', '--help'])}")
            flags = vars(namespace)
            if trusted := flags.pop("trust_code", None):
                os.environ[TRUST_VARIABLE] = ",".join([os.environ.get(TRUST_VARIABLE, ""), *trusted])
            values = read_settings(cls, flags.pop("config", None))
            for name, field in cls.model_fields.items():
                texts = flags.get(name, os.environ.get(f"DIFFRETRIEVER_{name.upper()}"))
                if texts is not None:
                    values[name] = _of_texts(name, field.annotation, texts)
            return cls.model_validate(values)
        except ValidationError as error:
            _fail("\n".join(error_messages(error, _flag)))
        except ValueError as error:
            _fail(str(error))

    def to_yaml(self) -> str:
        """Return the resolved config as a valid `--config` file."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


class ModelOptions(JobConfig):
    """Base of jobs that load a model: adds the flag --trust-code."""


class PresetListing(JobConfig):
    """Base of jobs that take the name of a retriever: adds the flag --list-presets."""

    protocol: Literal["authors", "paper"] | None = None
    """Change the retriever's settings to those of the authors' code, or of the paper's text taken literally: prompt,
    content words, lengths, impacts. Zero-shot and fine-tuned retrievers differ. Default: the retriever as it is."""


class RetrieverOptions(PresetListing):
    """Retriever: preset and model."""

    retriever: str = "diffretriever-minilm"
    """Name of a preset, path of a YAML file, sentence-transformers/MODEL (a hub id, or a folder such as
    sentence-transformers/./folder), or PACKAGE:NAME of an installed retriever."""
    backbone: str | None = None
    """Backbone that replaces the retriever's own: folder, object-store URI or hub id."""
    adapter: str | None = None
    """LoRA adapter that replaces the retriever's own: folder, object-store URI or hub id."""
    language: LanguageChoice = AUTO
    """Language of the texts, which sets the words of BM25 and sparse scores: ISO 639-1 code, such as de or zh. `auto`:
    that of the retriever's file or the existing index, else as ir_datasets states, else by script (Latin: en)."""


class BadInput(JobConfig):
    """Input: bad records."""

    on_bad_input: Literal["error", "quarantine"] = "error"
    """Policy for records that are invalid or encode to NaN or infinity. `error`: stop. `quarantine`: write them to
    `quarantine.jsonl` in the output folder, or to OUTPUT.quarantine.jsonl; for an index on an object store, to files in
    the folder `quarantine`."""


class SelfExclusion(JobConfig):
    """Search: whether a query finds its own document."""

    exclude_self: bool | None = None
    """Remove the document with the query's own id from the ranking. Default, as in BEIR: only if most queries are
    passages of the collection, as in ArguAna and Quora. The paper's results keep it."""

    @property
    def drops_self(self) -> bool:
        """Value of the flag; False if unset."""
        return bool(self.exclude_self)

    def settled(self, *, default: bool) -> Self:
        """Return the job with an unset flag replaced by `default`."""
        return self if self.exclude_self is not None else self.model_copy(update={"exclude_self": default})


class EncoderActors(ModelOptions):
    """Ray: number of encoders."""

    encoders: PositiveInt | None = None
    """Number of encoder actors; default: the cluster's capacity. Required with `autoscale`."""

    @property
    def encoding(self) -> RayConfig:
        """Ray settings of the encoders, with defaults for the rest."""
        return RayConfig(encoders=self.encoders)


class RayConfig(EncoderActors):
    """Ray: resources of the encoders."""

    cpus_per_encoder: PositiveFloat | None = None
    """CPUs that Ray reserves per encoder, also its number of threads; default: 1 with a GPU, 0.75 without."""
    gpus_per_encoder: NonNegativeFloat | None = None
    """GPUs per encoder, fractions allowed; default: 1 for a model if the cluster has GPUs, otherwise 0. With
    `autoscale`, required for a model until a GPU node is up."""
    tokens_per_batch: PositiveInt | None = None
    """Tokens per batch, including padding; default: 2048 on a CPU, 16384 on a GPU. An encoder that runs out of memory
    halves it."""
    compiled: bool = False
    """Compile the layers of a masked, pooled or tokens retriever's model with torch.compile. Use it on GPUs for many
    passages: it needs a C compiler and takes half a minute per encoder. Vectors change only by rounding."""
    autoscale: bool = False
    """Request `encoders` actors even above the current capacity, so that the cluster adds nodes. Encoding starts with
    the actors that are up."""

    @property
    def encoder_threads(self) -> int:
        """CPU threads per encoder."""
        return max(1, int(self.cpus_per_encoder or 1))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _parser(cls: type[JobConfig], examples: Sequence[str]) -> argparse.ArgumentParser:
    command = f"python {sys.argv[0]}" if sys.argv[0].endswith(".py") else Path(sys.argv[0]).name
    required = {name: field for name, field in cls.model_fields.items() if field.is_required()}
    parser = _Parser(
        prog=Path(sys.argv[0]).name,
        usage=" ".join(["%(prog)s", *(f"{_flag(n)} {_placeholder(f)}" for n, f in required.items()), "[options]"]),
        description=inspect.getdoc(cls),
        epilog="\n".join(["examples:", *(f"  {command} {each}" for each in examples)]) if examples else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        add_help=False,
        allow_abbrev=False,
    )
    for title, fields in {"required": required, **_grouped(cls)}.items():
        group = parser.add_argument_group(title)
        for name, field in fields.items():
            _add_flag(group, name, field)
    group = parser.add_argument_group("general")
    group.add_argument(
        "--config",
        metavar="PATH",
        help="YAML file with any of these settings; flags and DIFFRETRIEVER_* variables override it.",
    )
    if issubclass(cls, ModelOptions):
        group.add_argument("--trust-code", action="append", metavar="MODEL[,…]", help=_TRUST)
    if issubclass(cls, PresetListing):
        text = "List the presets that --retriever accepts, and exit."
        group.add_argument("--list-presets", action="store_true", help=text)
    group.add_argument("-h", "--help", action="help", help="Show this help and exit.")
    return parser


def _grouped(cls: type[JobConfig]) -> dict[str, dict[str, FieldInfo]]:
    optional = {name: field for name, field in cls.model_fields.items() if not field.is_required()}
    groups: dict[str, dict[str, FieldInfo]] = {title: {} for title in _GROUPS}
    for base in cls.__mro__:
        title = "options" if base is cls else (base.__doc__ or "").partition(":")[0]
        title = title if title in _GROUPS else title.lower()
        own = {name: optional.pop(name) for name in inspect.get_annotations(base) if name in optional}
        if own:
            groups.setdefault(title, {}).update(own)
    return {title: fields for title, fields in groups.items() if fields}


def _add_flag(group: argparse._ArgumentGroup, name: str, field: FieldInfo) -> None:
    text = (field.description or "").replace("%", "%%")
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    if default not in _HIDDEN_DEFAULTS:
        value = ",".join(map(str, default)) if isinstance(default, tuple) else default
        text += f" (default: {value})"
    if bool in (field.annotation, *get_args(field.annotation)):
        group.add_argument(_flag(name), action=argparse.BooleanOptionalAction, help=text)
    else:
        action = "append" if _is_several(field.annotation) else "store"
        group.add_argument(_flag(name), action=action, metavar=_placeholder(field), help=text)


def _placeholder(field: FieldInfo) -> str:
    return _metavar(Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation)


def _metavar(annotation: Any) -> str:
    kind, parts = get_origin(annotation), get_args(annotation)
    if kind is Annotated:
        return "PATH" if IS_PATH in parts else _metavar(parts[0])
    if kind is tuple:
        return f"{_metavar(parts[0])}[,…]"
    if kind is dict:
        return f"NAME={_metavar(parts[1])}[,…]"
    if kind is Literal:
        return "|".join(map(str, parts))
    if kind in (Union, UnionType):
        return "|".join(dict.fromkeys(_metavar(part) for part in parts if part is not NoneType))
    return _VALUES.get(annotation.__name__, annotation.__name__.upper())


def _is_several(annotation: Any) -> bool:
    return get_origin(annotation) in (tuple, dict)


def _of_texts(name: str, annotation: Any, texts: Any) -> Any:
    if not _is_several(annotation):
        return texts
    parts = [part for text in ([texts] if isinstance(texts, str) else texts) for part in text.split(",") if part]
    if get_origin(annotation) is tuple:
        return parts
    for part in parts:
        if "=" not in part:
            raise ValueError(f"{_flag(name)} '{part}': write NAME=VALUE")
    return dict(part.split("=", 1) for part in parts)


def read_settings(cls: type[JobConfig], path: str | None) -> dict[str, Any]:
    """Return the settings of a `--config` file; raise `ValueError` for unreadable files and unknown keys."""
    if path is None:
        return {}
    try:
        values = yaml.safe_load(Path(plain_location(path)).read_text("utf-8")) or {}
    except OSError as error:
        raise ValueError(f"--config {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"--config {path} is not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"--config {path} must contain `key: value` lines")
    refuse_unknown_keys(values, cls.model_fields, path)
    return values


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _fail(message: str) -> NoReturn:
    name = Path(sys.argv[0]).name
    sys.stderr.write(f"{name}: {message}\nSee `{name} --help`.\n")
    raise SystemExit(2)
