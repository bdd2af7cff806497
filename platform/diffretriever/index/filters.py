"""Parse filters, which are conditions on the metadata of passages, into SQL for Lance.

    condition:   comparison | NOT condition | condition AND condition | condition OR condition | (condition)
    comparison:  column = value, and with <>, !=, <, <=, >, >= | column IN (value, …) | column BETWEEN value AND value
                 | column LIKE 'begin%' | column IS NULL | column

NOT may precede IN, BETWEEN, LIKE and NULL. NOT binds before AND, and AND before OR. Columns are the metadata columns,
`id` and `collection`; a bool column is a condition by itself. Write texts and times in single quotes, and '' for a
quote within. As in SQL, only IS NULL matches a passage without a value. Functions are not supported.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import date
from typing import NamedTuple, NoReturn

from diffretriever.collections.metadata import time_of
from diffretriever.schemas.base import shortened, suggest
from diffretriever.schemas.metadata import Columns, ColumnType

MAX_CHARS = 20_000
"""Maximum length of a filter."""
_MAX_DEPTH = 32
_PASSAGE_COLUMNS: Columns = {"id": "string", "collection": "string"}
_TOKEN = re.compile(
    r"""\s*(?:
    (?P<text>'(?:[^']|'')*')
    | (?P<number>[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<sign><=|>=|<>|!=|==|=|<|>|\(|\)|,)
    )""",
    re.VERBOSE,
)
_COMPARISONS: Mapping[str, str] = {sign: sign for sign in ("=", "<>", "<", "<=", ">", ">=")} | {"==": "=", "!=": "<>"}
# Lance parses a minus sign as an operator, so the smallest int64 overflows.
_INT64 = range(1 - (1 << 63), 1 << 63)


class FilterError(ValueError):
    """An invalid filter; the message is one sentence."""


class _Token(NamedTuple):
    kind: str
    """`text`, `number`, `word`, `sign` or `end`."""
    text: str
    at: int
    """Character, from 1."""

    def matches(self, word: str) -> bool:
        return self.kind in ("word", "sign") and self.text.upper() == word

    def __str__(self) -> str:
        text = shortened(self.text)
        return "the end" if self.kind == "end" else text if self.kind == "text" else f"'{text}'"


def condition_of(text: str, metadata: Columns) -> str:
    """Translate a filter over the columns `metadata` into Lance's SQL.

    Raises:
        FilterError: the filter is invalid, names an unknown column, or compares a column with another type.
    """
    if len(text) > MAX_CHARS:
        raise FilterError(f"filter: {len(text):,} characters are too many: use at most {MAX_CHARS:,}")
    return _Parser(_tokens(text), {**_PASSAGE_COLUMNS, **metadata}).parse()


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            start = at + len(text[at:]) - len(text[at:].lstrip())
            raise FilterError(
                f"filter: unexpected {text[start]!r} at character {start + 1}: write texts in single quotes (a quote "
                "within is written twice), and names of columns without quotes"
            )
        tokens.append(_Token(match.lastgroup, match[match.lastgroup], match.start(match.lastgroup) + 1))
        at = match.end()
    return [*tokens, _Token("end", "", end + 1)]


class _Parser:
    def __init__(self, tokens: list[_Token], columns: Columns) -> None:
        self._tokens, self._columns = tokens, columns
        self._at = self._depth = 0

    def parse(self) -> str:
        condition = self._or()
        if self._next.kind != "end":
            self._fail("AND or OR or the end")
        return condition

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _accepts(self, word: str) -> bool:
        matches = self._next.matches(word)
        self._at += matches
        return matches

    def _expect(self, sign: str) -> None:
        if not self._accepts(sign):
            self._fail(f"'{sign}'")

    def _fail(self, expected: str) -> NoReturn:
        raise FilterError(f"filter: expected {expected} at character {self._next.at}, found {self._next}")

    def _or(self) -> str:
        return self._joined("OR", self._and)

    def _and(self) -> str:
        return self._joined("AND", self._not)

    def _joined(self, word: str, part: Callable[[], str]) -> str:
        parts = [part()]
        while self._accepts(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else f"({f' {word} '.join(parts)})"

    def _not(self) -> str:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise FilterError(f"filter: more than {_MAX_DEPTH} parentheses or NOT within each other")
        if self._accepts("NOT"):
            condition = f"(NOT {self._not()})"
        elif self._accepts("("):
            condition = self._or()
            self._expect(")")
        else:
            condition = self._comparison()
        self._depth -= 1
        return condition

    def _comparison(self) -> str:
        token = self._next
        if token.kind != "word":
            self._fail("a column's name")
        if token.text not in self._columns:
            raise FilterError(f"filter: unknown column {token}.{suggest(token.text, self._columns)}")
        self._at += 1
        name, kind = token.text, self._columns[token.text]
        if (sign := _COMPARISONS.get(self._next.text)) is not None:
            self._at += 1
            if kind == "bool" and sign not in ("=", "<>"):
                raise FilterError(f"filter: '{name}' is bool: compare it with = or <>")
            return f"(`{name}` {sign} {self._value(name, kind)})"
        if self._accepts("IS"):
            not_ = "NOT " if self._accepts("NOT") else ""
            self._expect("NULL")
            return f"(`{name}` IS {not_}NULL)"
        return self._ranged(name, kind)

    def _ranged(self, name: str, kind: ColumnType) -> str:
        not_ = "NOT " if self._accepts("NOT") else ""
        if self._accepts("IN"):
            self._expect("(")
            values = [self._value(name, kind)]
            while self._accepts(","):
                values.append(self._value(name, kind))
            self._expect(")")
            return f"(`{name}` {not_}IN ({', '.join(values)}))"
        if self._accepts("BETWEEN"):
            low = self._value(name, kind)
            self._expect("AND")
            return f"(`{name}` {not_}BETWEEN {low} AND {self._value(name, kind)})"
        if self._accepts("LIKE"):
            if kind != "string":
                raise FilterError(f"filter: LIKE is for texts, and '{name}' is {kind}")
            return f"(`{name}` {not_}LIKE {self._value(name, kind)})"
        if kind != "bool" or not_:
            self._fail("IN or BETWEEN or LIKE" if not_ else "one of =, <>, <, <=, >, >=, IN, BETWEEN, LIKE, IS NULL")
        return f"(`{name}` = true)"

    def _value(self, name: str, kind: ColumnType) -> str:
        if kind in ("date", "timestamp") and self._next.matches(kind.upper()):
            self._at += 1
        token = self._next
        if token.kind == "end" or (token.kind == "word" and token.text in self._columns):
            self._fail("a value")
        literal = _literal(token, kind)
        if literal is None:
            expected = _EXPECTED[kind]
            raise FilterError(f"filter: '{name}' is {kind}: write {expected} at character {token.at}, not {token}")
        self._at += 1
        return literal


_EXPECTED: Mapping[ColumnType, str] = {
    "bool": "true or false",
    "int64": "a whole number of 64 bits",
    "float64": "a number",
    "string": "a text in single quotes",
    "date": "a day such as '2020-12-31'",
    "timestamp": "a time such as '2020-12-31T23:59:00Z'",
}


def _literal(token: _Token, kind: ColumnType) -> str | None:
    if kind == "bool":
        return token.text.lower() if token.matches("TRUE") or token.matches("FALSE") else None
    if kind in ("int64", "float64"):
        return _number(token, kind) if token.kind == "number" else None
    if token.kind != "text":
        return None
    text = token.text[1:-1].replace("''", "'")
    return _quoted(text) if kind == "string" else _time(text, kind)


def _time(text: str, kind: ColumnType) -> str | None:
    try:
        read = date.fromisoformat(text) if kind == "date" else time_of(text)
    except (ValueError, OverflowError):
        return None
    return f"{kind} '{read.isoformat()}'"


def _number(token: _Token, kind: ColumnType) -> str | None:
    if kind == "float64":
        value = float(token.text)
        # repr keeps all digits, also of very large and small numbers.
        return f"{value!r}" if math.isfinite(value) else None
    integer = re.fullmatch(r"[-+]?\d{1,20}", token.text)
    return str(int(token.text)) if integer and int(token.text) in _INT64 else None


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
