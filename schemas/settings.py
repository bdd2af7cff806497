"""Job configs: one frozen model filled by command line, environment and YAML file, in that order of precedence."""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NoReturn, Self, Union, get_args, get_origin

import yaml
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt, ValidationError
from pydantic.fields import FieldInfo

from diffretriever.schemas.base import Model, refuse_unknown_keys, suggest
from diffretriever.schemas.places import plain_place

_VALUES = {
    "int": "N",
    "float": "X",
    "str": "TEXT",
    "Path": "PATH",
    "StorePath": "URI",
    "Budget": "qNpN",
    "CodecConfig": "CODEC",
}
"""Name of a type → its values in `--help`."""
TRUST_VARIABLE = "DIFFRETRIEVER_TRUST_CODE"
"""Variable with the models whose code may run, separated by commas."""
_TRUST = (
    "Model whose own Python code may run in this job, if its retriever asks for it (`remote_code: true`): a hub id, "
    "ID@REVISION, or a folder that begins with `/`, `./`, `../` or `~`; repeat the flag for several. No file, preset "
    f"or index can give this permission; the variable {TRUST_VARIABLE} can."
)
_UNSAID: tuple[Any, ...] = (None, (), {}, "", False)
"""Defaults that `--help` leaves out."""


class JobConfig(Model):
    """The base of job configs: a field is a flag, and the docstring below it is the flag's help."""

    @classmethod
    def from_command_line(cls, arguments: Sequence[str] | None = None, examples: Sequence[str] = ()) -> Self:
        """Build the config, or print the mistakes and exit with status 2.

        Args:
            arguments: flags and values; None: those of this process.
            examples: arguments that `--help` shows at its end.
        """
        try:
            given, unknown = _parser(cls, examples).parse_known_args(arguments)
            if unknown:
                flag = unknown[0].partition("=")[0]
                _fail(f"unknown flag {flag}.{suggest(flag, [*map(_flag, cls.model_fields), '--config', '--help'])}")
            flags = vars(given)
            if trusted := flags.pop("trust_code", None):
                os.environ[TRUST_VARIABLE] = ",".join([os.environ.get(TRUST_VARIABLE, ""), *trusted])
            values = read_settings(cls, flags.pop("config", None))
            for name, field in cls.model_fields.items():
                texts = flags.get(name, os.environ.get(f"DIFFRETRIEVER_{name.upper()}"))
                if texts is not None:
                    values[name] = _of_texts(field.annotation, texts)
            return cls.model_validate(values)
        except ValidationError as error:
            _fail("\n".join(_explain(item) for item in error.errors()))
        except ValueError as error:
            _fail(str(error))

    def to_yaml(self) -> str:
        """Return the resolved config; the same text is a valid `--config` file."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


class ModelOptions(JobConfig):
    """A job that loads a model: it has the flag --trust-code, a permission that no file can give."""


class PresetListing(JobConfig):
    """A job that takes the name of a retriever: it has the flag --list-presets."""


class RetrieverOptions(PresetListing):
    """The retriever."""

    retriever: str = "diffretriever-minilm"
    """Name of a preset, a YAML file that describes a retriever, sentence-transformers/MODEL (a model of the hub, or a
    folder such as sentence-transformers/./folder, used as its own files say), or PACKAGE:NAME of one installed."""
    backbone: str | None = None
    """Folder, object-store URI or hub id to use in place of the retriever's own backbone."""
    adapter: str | None = None
    """Folder, object-store URI or hub id of a LoRA adapter to use in place of the retriever's own."""


class BadInput(JobConfig):
    """Bad records."""

    on_bad_input: Literal["error", "quarantine"] = "error"
    """Policy for records that cannot be used, or that the retriever encodes as NaN or infinity. `error`: stop.
    `quarantine`: set them aside in a file `quarantine.jsonl` in the output folder, or OUTPUT.quarantine.jsonl; in an
    index on an object store, in files of a folder `quarantine`."""


class SelfExclusion(JobConfig):
    """Whether a query can find its own document."""

    exclude_self: bool | None = None
    """Drop a query's own document (same id) or not; default: as BEIR has it, which drops it where most queries are
    passages of the collection, as in ArguAna and Quora. The paper's rows keep it."""

    @property
    def drops_self(self) -> bool:
        """The flag; False if it is unset."""
        return bool(self.exclude_self)

    def settled(self, *, default: bool) -> Self:
        """Return the job with the flag set, to `default` if it is unset."""
        return self if self.exclude_self is not None else self.model_copy(update={"exclude_self": default})


class EncoderActors(ModelOptions):
    """The actors that encode."""

    encoders: PositiveInt | None = None
    """Encoder actors; default: as many as the cluster has room for. Required with `autoscale`."""

    @property
    def encoding(self) -> RayConfig:
        """These settings, and the defaults of the others."""
        return RayConfig(encoders=self.encoders)


class RayConfig(EncoderActors):
    """Where encoders run, and with what."""

    cpus_per_encoder: PositiveFloat | None = None
    """CPUs that Ray reserves for an encoder, which computes on as many threads; default: 1 with a GPU, 0.75 without."""
    gpus_per_encoder: NonNegativeFloat | None = None
    """GPUs of an encoder, fractions allowed; default: 1 for a model where the cluster has any, else 0. With
    `autoscale`, required for a model while no GPU is alive."""
    tokens_per_batch: PositiveInt | None = None
    """Tokens, padding included, of one batch; default: 2048 on a CPU, 16384 on a GPU. If memory runs out, an encoder
    continues with half."""
    compiled: bool = False
    """Compile the layers of a masked, pooled or tokens retriever's model (torch.compile): fewer and larger kernels. It
    needs a C compiler, takes half a minute in each encoder, and pays off on GPUs, for many passages; vectors stay the
    same up to rounding."""
    autoscale: bool = False
    """The cluster can add nodes: request `encoders` whatever room there is now, and encode with those that are up."""

    @property
    def encoder_threads(self) -> int:
        """CPU threads that compute in an encoder."""
        return max(1, int(self.cpus_per_encoder or 1))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _parser(cls: type[JobConfig], examples: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser with required flags first, then a group of flags for each class, the job's own first."""
    command = f"python {sys.argv[0]}" if sys.argv[0].endswith(".py") else Path(sys.argv[0]).name
    required = {name: field for name, field in cls.model_fields.items() if field.is_required()}
    parser = _Parser(
        prog=Path(sys.argv[0]).name,
        usage=" ".join(
            ["%(prog)s", *(f"{_flag(n)} {_metavar(f.annotation)}" for n, f in required.items()), "[options]"]
        ),
        description=cls.__doc__,
        epilog="\n".join(["examples:", *(f"  {command} {each}" for each in examples)]) if examples else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        add_help=False,
        allow_abbrev=False,
    )
    for title, fields in [("required", required), *_grouped(cls)]:
        group = parser.add_argument_group(title)
        for name, field in fields.items():
            _add_flag(group, name, field)
    group = parser.add_argument_group("general")
    group.add_argument(
        "--config",
        metavar="PATH",
        help="YAML file with any of these settings; flags and DIFFRETRIEVER_* variables win over it.",
    )
    if issubclass(cls, ModelOptions):
        group.add_argument("--trust-code", action="append", metavar="MODEL[,…]", help=_TRUST)
    if issubclass(cls, PresetListing):
        text = "Print the names that --retriever takes, with a sentence on each, and end."
        group.add_argument("--list-presets", action="store_true", help=text)
    group.add_argument("-h", "--help", action="help", help="Show this help and exit.")
    return parser


def _grouped(cls: type[JobConfig]) -> Iterator[tuple[str, dict[str, FieldInfo]]]:
    """Yield title and optional fields of the job, then those of each base that defines more."""
    left = {name: field for name, field in cls.model_fields.items() if not field.is_required()}
    for base in cls.__mro__:
        own = {name: left.pop(name) for name in inspect.get_annotations(base) if name in left}
        if own:
            yield "options" if base is cls else (base.__doc__ or "").partition(".")[0], own


def _add_flag(group: argparse._ArgumentGroup, name: str, field: FieldInfo) -> None:
    text = (field.description or "").replace("%", "%%")
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    if default not in _UNSAID:
        said = ",".join(map(str, default)) if isinstance(default, tuple) else default
        text += f" (default: {said})"
    if bool in (field.annotation, *get_args(field.annotation)):
        group.add_argument(_flag(name), action=argparse.BooleanOptionalAction, help=text)
    else:
        action = "append" if _is_several(field.annotation) else "store"
        group.add_argument(_flag(name), action=action, metavar=_metavar(field.annotation), help=text)


def _metavar(annotation: Any) -> str:
    kind, parts = get_origin(annotation), get_args(annotation)
    if kind is Annotated:
        return _metavar(parts[0])
    if kind is tuple:
        return f"{_metavar(parts[0])}[,…]"
    if kind is dict:
        return f"NAME={_metavar(parts[1])}"
    if kind is Literal:
        return "|".join(map(str, parts))
    if kind in (Union, UnionType):
        return "|".join(dict.fromkeys(_metavar(part) for part in parts if part is not NoneType))
    return _VALUES.get(annotation.__name__, annotation.__name__.upper())


def _is_several(annotation: Any) -> bool:
    return get_origin(annotation) in (tuple, dict)


def _of_texts(annotation: Any, texts: Any) -> Any:
    """Return the value of a flag or variable for pydantic: of several, a list, or a mapping of NAME=VALUE."""
    if not _is_several(annotation):
        return texts
    parts = [part for text in ([texts] if isinstance(texts, str) else texts) for part in text.split(",") if part]
    if get_origin(annotation) is tuple:
        return parts
    for part in parts:
        if "=" not in part:
            raise ValueError(f"'{part}': write NAME=VALUE")
    return dict(part.split("=", 1) for part in parts)


def read_settings(cls: type[JobConfig], path: str | None) -> dict[str, Any]:
    """Return the settings in a `--config` file; raises `ValueError` for unreadable files and unknown keys."""
    if path is None:
        return {}
    try:
        values = yaml.safe_load(Path(plain_place(path)).read_text("utf-8")) or {}
    except OSError as error:
        raise ValueError(f"--config {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"--config {path} is not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"--config {path} must hold `key: value` lines")
    refuse_unknown_keys(values, cls.model_fields, path)
    return values


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _explain(item: Any) -> str:
    message = str(item["msg"]).removeprefix("Value error, ")
    if not item["loc"]:
        return message
    flag = _flag(".".join(str(part) for part in item["loc"]))
    return f"{flag} is required" if item["type"] == "missing" else f"{flag}: {message}"


def _fail(message: str) -> NoReturn:
    name = Path(sys.argv[0]).name
    sys.stderr.write(f"{name}: {message}\nSee `{name} --help`.\n")
    raise SystemExit(2)
