"""Translates between the errors of Flight and those of Headrace."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from headrace.decoders import decode_msgpack
from headrace.errors import AccessError, HeadraceError, PeerLostError, from_wire, to_wire

FLIGHT_ERRORS = (pa.ArrowException, OSError)
"""The errors that a Flight stream raises when its call is over."""


def refuse(error: HeadraceError) -> Exception:
    """Return the exception with which a Flight handler refuses a call: the caller gets `error`."""
    refusal: Exception = fl.FlightServerError(
        str(error), extra_info=msgspec.msgpack.encode(to_wire(error))
    )
    return refusal


def translate(error: BaseException, peer: str) -> HeadraceError:
    """Return the error with which a call to `peer` ended."""
    if isinstance(error, fl.FlightServerError) and error.extra_info:
        return from_wire(*decode_msgpack(error.extra_info, tuple[str, str, str]))
    if isinstance(error, fl.FlightUnauthenticatedError):
        return AccessError(f"{peer} refused access", do="set the token that it expects")
    reason = _reason(error)
    if "handshake failed" in reason:
        return AccessError(
            f"the TLS handshake with {peer} failed: {reason}", do="set tls_root to its certificate"
        )
    return PeerLostError(f"{peer} cannot be reached: {reason}", do="see whether it runs")


def _reason(error: BaseException) -> str:
    """Return the cause without gRPC's debug context."""
    text = str(error).partition(". gRPC client debug context")[0].replace("\n", " ")
    return text.rpartition("with message: ")[2].rpartition("last error: ")[2]
