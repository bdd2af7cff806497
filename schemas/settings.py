"""Job configs: one frozen model filled by command line, environment and YAML file, in that order of precedence."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn, Self, get_args

import yaml
from pydantic import (
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    CliToggleFlag,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from diffretriever.schemas.base import CommaSeparated, Model, refuse_unknown_keys, suggest
from diffretriever.schemas.places import StorePath, plain_place

_VALUES = (
    (r"\{Budget,Path,StorePath\}", "qNpN"),
    (r"\{Path,StorePath\}", "PLACE"),
    (r"(?<=[{,])\{([^{}]*)\}", r"\1"),
    (r"dict\[str,(.*)\]", r"NAME=\1"),
    (r"tuple\[(.*),\.\.\.\]", r"\1[,…]"),
    (r"\bBudget\b", "qNpN"),
    (r"\bCodecConfig\b", "CODEC"),
    (r"\bPath\b", "PATH"),
    (r"\bfloat\b", "X"),
    (r"\bint\b", "N"),
    (r"\bstr\b", "TEXT"),
)
"""Type of a flag's value, as a pattern, and what a person calls it; the first ones are applied first."""
_EMPTY_DEFAULTS = ("default: None", "default: ()", "default: ", "default factory: dict")


class JobConfig(Model):
    """The base of job configs: a field is a flag, and the docstring below it is the flag's help."""

    config: Path | None = None
    """YAML file with any of these settings; flags and DIFFRETRIEVER_* variables win over it."""

    @field_validator("*", mode="before")
    @classmethod
    def _path_of_a_uri(cls, value: Any, info: ValidationInfo) -> Any:
        """`Path` would make one slash of the two in a URI: a `file:` URI is a path, others are refused here."""
        annotation = cls.model_fields[str(info.field_name)].annotation
        if not _takes(Path, annotation) or _takes(StorePath, annotation):
            return value
        return {key: _local(each) for key, each in value.items()} if isinstance(value, dict) else _local(value)

    @classmethod
    def from_command_line(cls, arguments: Sequence[str] | None = None, examples: Sequence[str] = ()) -> Self:
        """Build the config, or print what is wrong and how to mend it and exit with status 2.

        Args:
            arguments: flags and values; None: those of this process.
            examples: of arguments, which `--help` shows at its end.
        """
        given = list(sys.argv[1:] if arguments is None else arguments)
        # The fields have their helps: pydantic would look for docstrings again, through all modules that are loaded.
        own_settings = {"__doc__": cls.__doc__, "model_config": {"use_attribute_docstrings": False}}
        loader = type(cls.__name__, (_CommandLine, cls), own_settings)
        try:
            _refuse_unknown_flags(given, cls)
            own = {_flag_of(name) for name in cls.__annotations__}
            helps: Any = partial(_Help, own=own, examples=examples)
            command_line = CliSettingsSource[Any](
                loader, cli_parse_args=given, cli_prog_name=Path(sys.argv[0]).name, formatter_class=helps
            )
            settings = loader(_cli_settings_source=command_line, **cls._read_yaml(given))
            kept = {name: getattr(settings, name) for name in cls.model_fields if cls.model_fields[name].exclude}
            return cls.model_validate(settings.model_dump() | kept)
        except ValidationError as error:
            _fail("\n".join(_explain(item) for item in error.errors()))
        except ValueError as error:
            _fail(str(error))

    @classmethod
    def _read_yaml(cls, arguments: list[str]) -> dict[str, Any]:
        path = _flag_value(arguments, "--config")
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
        if "trust_code" in values:
            raise ValueError(
                f"{path}: trust_code: no file can allow code to run: say --trust-code, or set DIFFRETRIEVER_TRUST_CODE"
            )
        return values

    def to_yaml(self) -> str:
        """Return the resolved config; the same text is a valid `--config` file."""
        values = self.model_dump(mode="json", exclude={"config"})
        return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


class ModelOptions(JobConfig):
    """Settings of jobs that load an encoder."""

    trust_code: Annotated[CommaSeparated, NoDecode] = Field((), exclude=True)
    """Model whose own Python code may run in this job, if its retriever asks for it (`remote_code: true`): a hub id,
    ID@REVISION, or a folder that begins with `/`, `./`, `../` or `~`; repeat the flag for several. No file, preset or
    index can say so, and none keeps it."""


class PresetListing(JobConfig):
    """Settings of jobs that take the name of a retriever."""

    list_presets: CliToggleFlag[bool] = Field(default=False, exclude=True)
    """Print the names that --retriever takes, with what each is good for, and end."""


class SelfExclusion(JobConfig):
    """Whether a query can find its own document."""

    exclude_self: bool | None = None
    """Drop a query's own document (same id) or not; default: as BEIR has it, which drops it where most queries are
    passages of the collection, as in ArguAna and Quora. The paper's rows keep it."""

    @property
    def drops_self(self) -> bool:
        """What the flag says; no where it was left open and nothing has settled it."""
        return bool(self.exclude_self)

    def settled(self, *, default: bool) -> Self:
        """Return the job with the flag set, to `default` where it was left open."""
        return self if self.exclude_self is not None else self.model_copy(update={"exclude_self": default})


class RayConfig(ModelOptions):
    """Where encoders run, and with what."""

    ray_address: str = "auto"
    """Ray cluster to use; `auto` is a running one if there is, else a local one started for this job; `local` always
    starts one."""
    encoders: PositiveInt | None = None
    """Encoder actors; default: as many as the cluster has room for. Required with `autoscale`."""
    cpus_per_encoder: PositiveFloat | None = None
    """CPUs that Ray sets aside for an encoder; default: 1 beside a GPU, 0.75 without."""
    gpus_per_encoder: NonNegativeFloat | None = None
    """GPUs of an encoder, fractions allowed; default: 1 for a model where the cluster has any, else 0. With
    `autoscale`, required for a model while no GPU is alive."""
    threads_per_encoder: PositiveInt = 1
    """CPU threads that compute in an encoder."""
    tokens_per_batch: PositiveInt | None = None
    """Tokens, padding included, that an encoder puts through the model at once; default: 2048 on a CPU, 16384 on a GPU.
    If the device has no memory for a batch, the encoder continues with half of its tokens."""
    compiled: bool = False
    """Compile the layers of a masked, pooled or tokens retriever's model (torch.compile): fewer and larger kernels. It
    needs a C compiler, takes half a minute in each encoder, and pays off on GPUs, for many passages; vectors stay the
    same up to rounding."""
    autoscale: bool = False
    """The cluster adds machines: ask for `encoders` whatever room there is now, and encode with those that have
    come."""


def _local(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    place = plain_place(value)
    if "://" in place:
        raise ValueError(
            f"{place} lies on an object store, and this is read or written by ordinary file access: give a path"
        )
    return place


def _takes(kind: type, annotation: Any) -> bool:
    return annotation is kind or any(_takes(kind, each) for each in get_args(annotation))


class _CommandLine(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="DIFFRETRIEVER_",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Let the environment win over the YAML file, whose values arrive as init settings."""
        return env_settings, init_settings


class _Help(argparse.RawDescriptionHelpFormatter):
    """Puts required flags first, then the job's own, says values as people do, and leaves empty defaults out.

    Examples stand at the end.
    """

    def __init__(self, prog: str, own: set[str], examples: Sequence[str]) -> None:
        super().__init__(prog)
        self._own, self._examples = own, examples
        self._command = f"python {sys.argv[0]}" if sys.argv[0].endswith(".py") else prog

    def format_help(self) -> str:
        """Return the whole, or a part where the parser asks for its usage alone."""
        text = super().format_help()
        if not self._examples or "\noptions:" not in text:
            return text
        return "\n".join([text, "examples:", *(f"  {self._command} {each}" for each in self._examples), ""])

    def add_usage(
        self, usage: str | None, actions: Iterable[argparse.Action], groups: Any, prefix: str | None = None
    ) -> None:
        required = " ".join(
            f"{action.option_strings[0]} {_spoken(action)}" for action in actions if _is_required(action)
        )
        super().add_usage(f"%(prog)s {required} [options]".replace("  ", " "), actions, groups, prefix)

    def add_arguments(self, actions: Iterable[argparse.Action]) -> None:
        for action in sorted(actions, key=self._rank):
            if action.help:
                for empty in _EMPTY_DEFAULTS:
                    action.help = action.help.removesuffix(f" ({empty})")
            if action.metavar is not None:
                action.metavar = _spoken(action)
            self.add_argument(action)

    def _rank(self, action: argparse.Action) -> tuple[bool, bool]:
        return not _is_required(action), not self._own.intersection(action.option_strings)


def _is_required(action: argparse.Action) -> bool:
    return (action.help or "").endswith("(required)")


def _spoken(action: argparse.Action) -> str:
    """Return what a flag's value is called, in place of its type in Python."""
    text = str(action.metavar)
    for pattern, spoken in _VALUES:
        text = re.sub(pattern, spoken, text)
    return text


def _flag_value(arguments: list[str], flag: str) -> str | None:
    for index, argument in enumerate(arguments):
        if argument.startswith(f"{flag}="):
            return argument.partition("=")[2]
        if argument == flag and index + 1 < len(arguments):
            return arguments[index + 1]
    return None


def _refuse_unknown_flags(arguments: list[str], cls: type[JobConfig]) -> None:
    offered = {_flag_of(name) for name in cls.model_fields} | {"--help"}
    known = offered | {_flag_of(f"no_{name}") for name in cls.model_fields}
    for argument in arguments:
        flag = argument.partition("=")[0]
        if not flag.startswith("--") or flag in known:
            continue
        raise ValueError(f"unknown flag {flag}.{suggest(flag, offered)}")


def _flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def _explain(item: Any) -> str:
    message = str(item["msg"]).removeprefix("Value error, ")
    if not item["loc"]:
        return message
    flag = "--" + ".".join(str(part) for part in item["loc"]).replace("_", "-")
    if item["type"] == "missing":
        return f"{flag} is required"
    return f"{flag}: {message}"


def _fail(message: str) -> NoReturn:
    name = Path(sys.argv[0]).name
    sys.stderr.write(f"{name}: {message}\nSee `{name} --help`.\n")
    raise SystemExit(2)
