"""Finds the place where a query stops being PromQL, for the parser names none. Pure.

A prefix of a query can go on if some text makes a query of it. The first token after which none
does is the wrong one.
"""

from __future__ import annotations

import re
from itertools import product

import promql_parser as grammar

from headrace.stores.timeseries.promql.query_text import QueryText

_OF_GRAMMAR = re.compile(
    r"invalid promql query|unclosed|unexpected|unterminated|bad number|no expression|missing"
)
"""Errors that say that a text is no expression, not that an expression has no meaning."""
_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_NEXT = ("", " x", " 1", " 5m", '="y"', '"y"', "()", " (x)", " (x) (x)", " (x) x")
_AFTER_CLOSER = ("", " (x)", " x")
_SEARCHED_TOKENS_MAX = 60
_PREFIX_TOKENS_MAX = 300
"""The place in a longer query is not looked for: that would take many seconds."""


def parse_failure(text: QueryText) -> tuple[int, str] | None:
    """Return where a query goes wrong, as an offset, and why; None if it is PromQL."""
    query, tokens = text.mask, text.tokens
    error = _error(query)
    if error is None:
        return None
    if len(tokens) > _PREFIX_TOKENS_MAX:
        return 0, error
    if not _OF_GRAMMAR.match(error):
        return _shortest_part(query, tokens, error), error
    good, bad = 0, len(tokens) + 1
    while bad - good > 1:
        middle = (good + bad) // 2
        if _can_go_on(query, tokens[:middle]):
            good = middle
        else:
            bad = middle
    if good == len(tokens):
        return len(query), "unexpected end of input"
    wrong = tokens[good]
    if error == "invalid promql query":
        error = f"unexpected {wrong[0]}"
    return wrong.start(), error


def line_and_column(query: str, offset: int) -> str:
    """Return a place as people count: both begin with 1."""
    before = query[:offset]
    return f"{before.count(chr(10)) + 1}:{offset - before.rfind(chr(10))}"


def _error(query: str) -> str | None:
    try:
        grammar.parse(query)
    except ValueError as error:
        return str(error)
    return None


def _can_go_on(query: str, tokens: list[re.Match[str]]) -> bool:
    """Return True if something after these tokens makes them a query, right or wrong."""
    if not tokens:
        return True
    prefix = query[: tokens[-1].end()]
    closers: list[str] = []
    for token in tokens:
        if token[0] in _CLOSERS:
            closers.insert(0, _CLOSERS[token[0]])
        elif closers and token[0] == closers[0]:
            closers.pop(0)
    afters = _AFTER_CLOSER if closers else ("",)
    for following, after in product(_NEXT, afters):
        error = _error(prefix + following + "".join(closers[:1]) + after + "".join(closers[1:]))
        if error is None or not _OF_GRAMMAR.match(error):
            return True
    return False


def _shortest_part(query: str, tokens: list[re.Match[str]], error: str) -> int:
    """Return where the shortest part of the query begins that is wrong in the same way."""
    searched = tokens[:_SEARCHED_TOKENS_MAX]
    for count in range(1, len(searched) + 1):
        for first in range(len(searched) - count + 1):
            start, end = searched[first].start(), searched[first + count - 1].end()
            if _error(query[start:end]) == error:
                return start
    return 0
