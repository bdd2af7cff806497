"""The documented objects of the standard library, found without importing its Python modules."""

from __future__ import annotations

import ast
import importlib
import inspect
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

_SKIPPED_FOLDERS = frozenset(
    {
        "__pycache__",
        "dist-packages",
        "ensurepip",
        "idlelib",
        "lib2to3",
        "site-packages",
        "test",
        "tests",
        "turtledemo",
    }
)

_TWINS_OF_COMPILED = frozenset({"_pydatetime.py", "_pydecimal.py", "_pyio.py"})

_COMPILED = {
    "_asyncio": "asyncio",
    "_bisect": "bisect",
    "_bz2": "bz2",
    "_codecs": "codecs",
    "_collections": "collections",
    "_contextvars": "contextvars",
    "_csv": "csv",
    "_ctypes": "ctypes",
    "_datetime": "datetime",
    "_decimal": "decimal",
    "_elementtree": "xml.etree.ElementTree",
    "_functools": "functools",
    "_hashlib": "hashlib",
    "_heapq": "heapq",
    "_io": "io",
    "_json": "json",
    "_locale": "locale",
    "_lzma": "lzma",
    "_operator": "operator",
    "_pickle": "pickle",
    "_queue": "queue",
    "_random": "random",
    "_signal": "signal",
    "_socket": "socket",
    "_sqlite3": "sqlite3",
    "_sre": "re",
    "_ssl": "ssl",
    "_stat": "stat",
    "_struct": "struct",
    "_thread": "_thread",
    "_tracemalloc": "tracemalloc",
    "_weakref": "weakref",
    "_zoneinfo": "zoneinfo",
    "array": "array",
    "atexit": "atexit",
    "binascii": "binascii",
    "builtins": "builtins",
    "cmath": "cmath",
    "errno": "errno",
    "faulthandler": "faulthandler",
    "fcntl": "fcntl",
    "gc": "gc",
    "grp": "grp",
    "itertools": "itertools",
    "marshal": "marshal",
    "math": "math",
    "mmap": "mmap",
    "posix": "os",
    "pwd": "pwd",
    "pyexpat": "xml.parsers.expat",
    "resource": "resource",
    "select": "select",
    "sys": "sys",
    "syslog": "syslog",
    "termios": "termios",
    "time": "time",
    "unicodedata": "unicodedata",
    "zlib": "zlib",
}
"""Compiled module → the name it is documented under. All are safe to import and warn of nothing."""

_DOCUMENTED_NODES = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def documented_objects() -> dict[str, str]:
    """Return qualified name → cleaned docstring of modules, classes, functions and methods, sorted.

    Of objects with the same name, such as a function and its compiled twin, the Python source's comes first.
    """
    found: dict[str, str] = {}
    with warnings.catch_warnings():
        # Else a filter that makes errors of warnings would make another collection.
        warnings.simplefilter("ignore")
        for name, doc in (*_in_sources(), *_in_compiled()):
            if doc:
                found.setdefault(name, doc)
    return dict(sorted(found.items()))


def _in_sources() -> Iterator[tuple[str, str | None]]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in _source_files(root):
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            # A distribution may carry a file that its interpreter never compiles.
            continue
        module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        yield module, ast.get_docstring(tree)
        yield from _in_body(tree.body, module)


def _source_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if (path / "__init__.py").is_file() and path.name not in _SKIPPED_FOLDERS:
            yield from _source_files(path)
        elif path.suffix == ".py" and path.name not in _TWINS_OF_COMPILED:
            yield path


def _in_body(body: Iterable[ast.AST], prefix: str) -> Iterator[tuple[str, str | None]]:
    for node in body:
        if isinstance(node, _DOCUMENTED_NODES):
            name = f"{prefix}.{node.name}"
            yield name, ast.get_docstring(node)
            if isinstance(node, ast.ClassDef):
                yield from _in_body(node.body, name)
        elif isinstance(node, ast.If | ast.Try | ast.ExceptHandler):
            # Definitions that depend on the platform.
            yield from _in_body(ast.iter_child_nodes(node), prefix)


def _in_compiled() -> Iterator[tuple[str, str | None]]:
    for compiled, public in _COMPILED.items():
        try:
            module = importlib.import_module(compiled)
        except ImportError:
            continue
        yield public, _cleaned(module)
        yield from _in_module(module, public)


def _in_module(module: ModuleType, public: str) -> Iterator[tuple[str, str | None]]:
    homes = (module.__name__, public)
    for name, value in sorted(vars(module).items()):
        if getattr(value, "__module__", None) not in homes:
            continue
        if inspect.isroutine(value):
            yield f"{public}.{name}", _cleaned(value)
        elif inspect.isclass(value):
            yield f"{public}.{name}", _cleaned(value)
            yield from _in_class(value, f"{public}.{name}")


def _in_class(owner: type, prefix: str) -> Iterator[tuple[str, str | None]]:
    for name, value in sorted(vars(owner).items()):
        if inspect.isroutine(value) or inspect.isdatadescriptor(value):
            yield f"{prefix}.{name}", _cleaned(value)


def _cleaned(value: Any) -> str | None:
    doc = value.__doc__
    return inspect.cleandoc(doc) if isinstance(doc, str) else None
