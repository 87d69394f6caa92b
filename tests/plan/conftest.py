"""Objects of every kind, as the tests of the exchange have them."""

from __future__ import annotations

from tests.exchange.conftest import objects

__all__ = ["objects"]
