"""Jobs whose stages pull units from topics, exactly once, and never pay for a call twice.

The order that everything here keeps:

    the payload of an output is stored
    → output messages, dead letters and the input offset are committed in one step
    → the master is told

Whoever dies between two of these leaves nothing but a payload that nobody refers to. Whoever comes
back late is refused by the second: the committed offset is no longer the one that it expects.

A stage that takes all rows at once has no offset to commit. Its result is sealed instead, between
the payloads and the messages: see `sealed_results`.
"""
