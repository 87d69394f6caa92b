"""Ready operators for services that speak OpenAI's API: chat and embeddings.

    hr.openai_chat("Describe {product} in one sentence.", model="gpt-4o-mini", price=(0.15, 0.60))
    hr.openai_embeddings("{title} {text}", model="text-embedding-3-small", price=0.02)

What a call used, as the service reports it, counts for the rate limit by tokens and for the cost.
Prices are for a million tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.errors import UsageError
from headrace.pipeline.operators.http import HttpOperator, Row
from headrace.pipeline.rate_limit.state import RateLimitSpec

OPENAI_URL = "https://api.openai.com/v1"
OPENAI_KEY = "OPENAI_API_KEY"

Prompt = str | Callable[[Row], Any]

_TOKEN_LETTERS = 4
"""A token of English text is about this long."""
_MILLION = 1_000_000


def openai_chat(
    prompt: Prompt,
    *,
    model: str,
    into: str = "answer",
    system: str = "",
    usage_into: str = "",
    price: tuple[float, float] | None = None,
    base_url: str = OPENAI_URL,
    api_key_env: str = OPENAI_KEY,
    rate_limit: RateLimitSpec | None = None,
    timeout_s: float = 120.0,
    version: str = "",
    **parameters: Any,
) -> HttpOperator:
    """Ask a model about each row, and put its answer into a column.

    `prompt` is a template such as "Describe {name}", or a function of the row that returns a text
    or a list of messages. `price` is for prompt and completion. `parameters`, such as temperature
    or max_tokens, go into the request. `usage_into` names a column for the tokens that were used.
    """
    chat = _Chat(prompt, model, into, system, usage_into, parameters)
    return HttpOperator(
        f"{base_url.rstrip('/')}/chat/completions",
        json=chat.body,
        parse=chat.columns,
        cost=_Price(*price).cost if price else None,
        tokens=chat.expected_tokens,
        used_tokens=used_tokens,
        bearer_env=api_key_env,
        is_bearer_required=base_url == OPENAI_URL,
        rate_limit=rate_limit,
        timeout_s=timeout_s,
        version=version,
    )


def openai_embeddings(
    text: Prompt,
    *,
    model: str,
    into: str = "embedding",
    price: float | None = None,
    rows_per_request: int = 64,
    base_url: str = OPENAI_URL,
    api_key_env: str = OPENAI_KEY,
    rate_limit: RateLimitSpec | None = None,
    timeout_s: float = 60.0,
    version: str = "",
    **parameters: Any,
) -> HttpOperator:
    """Turn a text of each row into a vector. A request is for several rows, and is one call."""
    if rows_per_request < 2:  # A list of one text would be another form of request.
        raise UsageError(
            f"rows_per_request must be at least 2, got {rows_per_request}", do="use 2 or more"
        )
    embeddings = _Embeddings(text, model, into, parameters)
    return HttpOperator(
        f"{base_url.rstrip('/')}/embeddings",
        json=embeddings.body,
        parse=embeddings.columns,
        rows_per_request=rows_per_request,
        cost=_Price(price, 0.0).cost if price is not None else None,
        tokens=embeddings.expected_tokens,
        used_tokens=used_tokens,
        bearer_env=api_key_env,
        is_bearer_required=base_url == OPENAI_URL,
        rate_limit=rate_limit,
        timeout_s=timeout_s,
        version=version,
    )


def used_tokens(answer: Any) -> int:
    """Return what the service says that a call used; 0 if it says nothing."""
    return int((answer.get("usage") or {}).get("total_tokens") or 0)


def _fill(prompt: Prompt, row: Row) -> Any:
    return prompt(row) if callable(prompt) else prompt.format_map(row)


@dataclass(frozen=True)
class _Price:
    prompt: float
    completion: float

    def cost(self, answer: Any) -> float:
        usage = answer.get("usage") or {}
        prompt = usage.get("prompt_tokens") or 0
        completion = usage.get("completion_tokens") or 0
        return (prompt * self.prompt + completion * self.completion) / _MILLION


@dataclass(frozen=True)
class _Chat:
    prompt: Prompt
    model: str
    into: str
    system: str
    usage_into: str
    parameters: dict[str, Any] = field(default_factory=dict)

    def body(self, row: Row) -> dict[str, Any]:
        asked = _fill(self.prompt, row)
        messages = asked if isinstance(asked, list) else [{"role": "user", "content": asked}]
        if self.system:
            messages = [{"role": "system", "content": self.system}, *messages]
        return {"model": self.model, "messages": messages, **self.parameters}

    def columns(self, answer: Any) -> dict[str, Any]:
        columns = {self.into: answer["choices"][0]["message"]["content"]}
        if self.usage_into:
            columns[self.usage_into] = used_tokens(answer)
        return columns

    def expected_tokens(self, row: Row) -> int:
        asked = sum(len(str(each["content"])) for each in self.body(row)["messages"])
        limits = (self.parameters.get(name) for name in ("max_completion_tokens", "max_tokens"))
        return asked // _TOKEN_LETTERS + next((limit for limit in limits if limit), 0)


@dataclass(frozen=True)
class _Embeddings:
    text: Prompt
    model: str
    into: str
    parameters: dict[str, Any] = field(default_factory=dict)

    def body(self, rows: list[Row]) -> dict[str, Any]:
        texts = [_fill(self.text, row) for row in rows]
        return {"model": self.model, "input": texts, **self.parameters}

    def columns(self, answer: Any) -> list[dict[str, Any]]:
        data = sorted(answer["data"], key=lambda each: each["index"])
        kind = pa.list_(pa.float32())
        vectors = pa.array([each["embedding"] for each in data], kind)
        return [{self.into: vector} for vector in vectors]

    def expected_tokens(self, row: Row) -> int:
        return len(_fill(self.text, row)) // _TOKEN_LETTERS
