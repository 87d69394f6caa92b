"""Which values of a label a matcher accepts, all values at once. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import QueryError
from headrace.stores.timeseries.series import LabelMatcher, Labels, MatchKind

_EXPRESSIONS = (MatchKind.MATCHES, MatchKind.UNLIKE)
_NEGATIVE = (MatchKind.UNEQUAL, MatchKind.UNLIKE)


def matching(matcher: LabelMatcher, values: pa.Array) -> npt.NDArray[np.bool_]:
    """Return for each value, an Arrow array of strings, if the matcher accepts it.

    Raises QueryError if the matcher's expression cannot be read.
    """
    if matcher.kind in _EXPRESSIONS:
        found = _match_expression(matcher, values)
    else:
        found = pc.equal(values, pa.scalar(matcher.value, values.type))
    mask: npt.NDArray[np.bool_] = np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.bool_)
    return ~mask if matcher.kind in _NEGATIVE else mask


def accepts_missing(matcher: LabelMatcher) -> bool:
    """Return True if the matcher accepts series that do not have the label."""
    return bool(matching(matcher, pa.array([""], pa.string()))[0])


def check_matchers(matchers: Sequence[LabelMatcher]) -> None:
    """Raise QueryError if an expression cannot be read, even if there is nothing to match."""
    for matcher in matchers:
        accepts_missing(matcher)


def matching_series(
    labels: Sequence[Labels], matchers: Sequence[LabelMatcher]
) -> npt.NDArray[np.bool_]:
    """Return for each series, given by its labels, if all matchers accept it."""
    mask = np.ones(len(labels), dtype=np.bool_)
    check_matchers(matchers)
    found = [dict(each) for each in labels] if matchers else []
    for matcher in matchers:
        values = pa.array([each.get(matcher.name, "") for each in found], pa.string())
        distinct = values.dictionary_encode()
        accepted = matching(matcher, distinct.dictionary)
        mask &= accepted[distinct.indices.to_numpy()]
    return mask


def _match_expression(matcher: LabelMatcher, values: pa.Array) -> pa.Array:
    try:
        # By itself first: a ")" too many must not close the group that is put around it.
        pc.match_substring_regex(pa.array([""], pa.string()), matcher.value)
        return pc.match_substring_regex(values, rf"\A(?s:{matcher.value})\z")
    except (pa.ArrowInvalid, UnicodeEncodeError) as error:
        why = str(error).removeprefix("Invalid regular expression: ")
        raise QueryError(
            f"the expression of the matcher {matcher} is not RE2: {why}", do="correct it"
        ) from error
