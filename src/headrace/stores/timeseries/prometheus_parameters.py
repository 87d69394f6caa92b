"""The parameters of calls, as Prometheus reads them. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from urllib.parse import parse_qsl

from headrace.errors import QueryError
from headrace.stores.timeseries.promql.expression import InstantSelector
from headrace.stores.timeseries.promql.query_parser import parse_query
from headrace.stores.timeseries.series import LabelMatcher

_UNITS_MS = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
    "y": 31_536_000_000,
}
_DURATION = re.compile(
    r"(?:(\d+)y)?(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?"
)
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_TIME_MS_MAX = 1 << 53


class CallParameters:
    """What the address and the form of a call say. A form counts before the address."""

    def __init__(self, address: bytes, form: bytes = b"") -> None:
        self._pairs: list[tuple[str, str]] = []
        for part in (form, address):
            self._pairs += parse_qsl(part.decode("utf-8", "replace"), keep_blank_values=True)

    def text(self, name: str) -> str:
        """Return the first value of a parameter, or nothing."""
        return next((value for own, value in self._pairs if own == name), "")

    def texts(self, name: str) -> list[str]:
        return [value for own, value in self._pairs if own == name]

    def time_ms(self, name: str, default: int | None = None) -> int:
        text = self.text(name)
        if not text and default is not None:
            return default
        found = _moment_ms(text)
        if found is None or abs(found) > _TIME_MS_MAX:
            raise invalid(name, f'cannot parse "{text}" to a valid timestamp')
        return found

    def duration_ms(self, name: str) -> int:
        text = self.text(name)
        found = _duration_ms(text)
        if found is None or abs(found) > _TIME_MS_MAX:
            raise invalid(name, f'cannot parse "{text}" to a valid duration')
        return found

    def limit(self) -> int:
        """Return how many of something are asked for at most; 0 is all of them."""
        text = self.text("limit")
        if not text:
            return 0
        if not re.fullmatch(r"[+-]?\d{1,18}", text, re.ASCII):
            raise invalid("limit", f'cannot parse "{text}" to a number')
        if int(text) < 0:
            raise invalid("limit", "limit must be non-negative")
        return int(text)

    def selectors(self, name: str = "match[]") -> list[Sequence[LabelMatcher]]:
        """Return the matchers of all selectors that are given."""
        found: list[Sequence[LabelMatcher]] = []
        for text in self.texts(name):
            try:
                node = parse_query(text)
            except QueryError as error:
                raise invalid(name, str(error)) from error
            if not isinstance(node, InstantSelector) or node.offset_ms or node.at is not None:
                raise invalid(name, f'"{text}" is no series selector')
            found.append(node.matchers)
        return found


def invalid(name: str, why: str) -> QueryError:
    return QueryError(f'invalid parameter "{name}": {why}')


def _moment_ms(text: str) -> int | None:
    if _NUMBER.fullmatch(text):
        seconds = float(text)
        return round(seconds * 1000) if math.isfinite(seconds) else None
    found = _MOMENT.fullmatch(text)
    if found is None:
        return None
    try:
        moment = datetime.fromisoformat(found[1] + found[3].replace("Z", "+00:00"))
    except ValueError:
        return None
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1000 + int((found[2] or "0").ljust(3, "0")[:3])


def _duration_ms(text: str) -> int | None:
    if _NUMBER.fullmatch(text):
        seconds = float(text)
        # Less than a millisecond is nothing, as in Prometheus.
        return int(seconds * 1000) if math.isfinite(seconds) else None
    if text == "0":
        return 0
    found = _DURATION.fullmatch(text) if text else None
    if found is None:
        return None
    units = reversed(_UNITS_MS.values())
    return sum(int(part or 0) * unit for part, unit in zip(found.groups(), units, strict=True))
