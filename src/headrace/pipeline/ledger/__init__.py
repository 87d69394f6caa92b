"""The ledger of calls that cost money: an intent before each call, its result after it.

The order is everywhere the same: the intent is durable before the claim is answered, so before the
call is made; the result is durable before `record` returns, so before any output holds it.
"""
