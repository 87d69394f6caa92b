"""The tokens of a query, and its strings, as Prometheus reads them. Pure.

`promql-parser` refuses a backslash between backquotes, and takes expressions for those of Rust,
which are not RE2. So it is given a text in which every string is a placeholder, and strings are
read here. A placeholder is an expression that matches the empty string if the original does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from headrace.errors import QueryError
from headrace.stores.timeseries.matchers import accepts_missing
from headrace.stores.timeseries.series import LabelMatcher, MatchKind

TOKENS_MAX = 2_000
NESTING_MAX = 150
"""A query with deeper parentheses would end the process: the parser calls itself for each."""

_TOKEN = re.compile(
    r"""
      (?P<string> "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' | `[^`]*` )
    | (?P<space>\s+|\#[^\n]*)
    | [A-Za-z0-9_:.]+ | =~ | !~ | != | == | <= | >= | .
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(
    r"""\\(?:
      (?P<letter>[abfnrtv\\'"]) | x(?P<byte>[0-9a-fA-F]{2}) | (?P<octal>[0-3][0-7]{2})
    | u(?P<short>[0-9a-fA-F]{4}) | U(?P<long>[0-9a-fA-F]{8}) | (?P<unknown>)
    )""",
    re.VERBOSE,
)
_LETTERS = dict(zip("abfnrtv\\'\"", "\a\b\f\n\r\t\v\\'\"", strict=True))
_PLACEHOLDER = re.compile(r"\((\d+)\)\*?")


class QuerySyntaxError(ValueError):
    """A query that is wrong at an offset."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(why)
        self.offset = offset


@dataclass(frozen=True, slots=True)
class StringToken:
    token: re.Match[str]
    value: str
    accepts_empty: bool
    """True for an expression that matches the empty string, and for the empty string."""


class QueryText:
    """A query as tokens.

    Raises QuerySyntaxError for strings that cannot be read, and for a query that is too long.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        tokens = (each for each in _TOKEN.finditer(text) if not each["space"])
        self.tokens = list(islice(tokens, TOKENS_MAX + 1))
        _check_size(self.tokens)
        self._strings = [
            self._read_string(place)
            for place, token in enumerate(self.tokens)
            if token["string"] is not None
        ]

    @cached_property
    def template(self) -> str:
        """The query for the parser."""
        return self._replace(
            lambda number, each: f'"({number}){"*" * each.accepts_empty}"' if each.value else '""'
        )

    @cached_property
    def mask(self) -> str:
        """The query with strings as long as they were, where places count."""
        return self._replace(
            lambda _, each: f'"{"|x"[not each.accepts_empty] * (len(each.token[0]) - 2)}"'
        )

    def value(self, placeholder: str) -> str:
        """Return the string for which a placeholder stands; other text is what it is."""
        found = _PLACEHOLDER.fullmatch(placeholder)
        return self._strings[int(found[1])].value if found else placeholder

    def restore(self, template: str) -> str:
        """Return a text that was made of the template, with its strings."""
        return re.sub(
            f'"{_PLACEHOLDER.pattern}"',
            lambda found: self._strings[int(found[1])].token[0],
            template,
        )

    def _read_string(self, place: int) -> StringToken:
        token = self.tokens[place]
        value = _unquote(token)
        if place < 2 or self.tokens[place - 1][0] not in {"=~", "!~"}:
            return StringToken(token, value, not value)
        name = self.tokens[place - 2]
        try:
            accepts_empty = accepts_missing(LabelMatcher(name[0], MatchKind.MATCHES, value))
        except QueryError as error:
            raise QuerySyntaxError(name.start(), error.what) from error
        return StringToken(token, value, accepts_empty)

    def _replace(self, replacement: Callable[[int, StringToken], str]) -> str:
        pieces, end = [], 0
        for number, each in enumerate(self._strings):
            pieces += [self.text[end : each.token.start()], replacement(number, each)]
            end = each.token.end()
        return "".join([*pieces, self.text[end:]])


def _check_size(tokens: Sequence[re.Match[str]]) -> None:
    if len(tokens) > TOKENS_MAX:
        raise QuerySyntaxError(
            tokens[TOKENS_MAX].start(), f"the query is longer than {TOKENS_MAX} words and signs"
        )
    depth = 0
    for token in tokens:
        depth += (token[0] in "([{") - (token[0] in ")]}")
        if depth > NESTING_MAX:
            raise nested_too_deep(token.start())


def nested_too_deep(offset: int) -> QuerySyntaxError:
    return QuerySyntaxError(offset, f"the query is nested more than {NESTING_MAX} deep")


def _unquote(token: re.Match[str]) -> str:
    """Return what a string means: escapes are those of Go, and may name single bytes."""
    quote, inside = token[0][0], token[0][1:-1]
    if quote == "`" or "\\" not in inside:
        return inside
    pieces, end = [], 0
    for found in _ESCAPE.finditer(inside):
        other = found["letter"] in set("'\"") - {quote}
        if found["unknown"] is not None or other:
            offset = token.start() + 1 + found.start()
            raise QuerySyntaxError(
                offset, f"unknown escape sequence {inside[found.start() : found.start() + 2]!r}"
            )
        pieces += [inside[end : found.start()].encode("utf-8", "surrogatepass"), _escaped(found)]
        end = found.end()
    pieces.append(inside[end:].encode("utf-8", "surrogatepass"))
    try:
        return b"".join(pieces).decode()
    except UnicodeDecodeError as error:
        raise QuerySyntaxError(token.start(), "a string that is not UTF-8") from error


def _escaped(found: re.Match[str]) -> bytes:
    if found["letter"]:
        return _LETTERS[found["letter"]].encode()
    if found["byte"]:
        return bytes([int(found["byte"], 16)])
    if found["octal"]:
        return bytes([int(found["octal"], 8)])
    code = int(found["short"] or found["long"], 16)
    # What is no character becomes bytes that are no UTF-8, and is refused with them.
    return chr(code).encode("utf-8", "surrogatepass") if code < 0x110000 else b"\xff"
