"""Asks a paid service about every row, and pays for no row twice.

    python examples/paid_api.py              # end it with Ctrl-C or kill -9, then run it again
    python examples/paid_api.py --url https://api.openai.com/v1 --model gpt-4o-mini

Without --url it starts a small server on this machine that counts what it is paid for. At the end
it prints the bill: one call for each row, however often the program was killed. With --url it asks
any service that speaks OpenAI's API; the key is in OPENAI_API_KEY.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa

import headrace as hr
from headrace.testing.paid_server import PaidServer


def products(count: int) -> pa.Table:
    return pa.table({"product": [f"teapot number {n}" for n in range(count)]})


def build(workspace: hr.Workspace, rows: int, url: str, model: str) -> hr.Pipeline:
    ask = hr.openai_chat(
        "Describe {product} in one sentence.",
        model=model,
        base_url=url,
        price=(0.15, 0.60),  # dollars for a million tokens of prompt and of answer
        rate_limit=hr.RateLimitSpec(name="chat", requests_per_minute=6_000),
        version=model,  # not the URL: the little server has another port each time
    )
    return (
        hr.pipeline("descriptions", workspace)
        .source(products(rows), rows_per_unit=20)
        .http(ask, name="ask", workers=2, on_error="dead_letter", budget=1.00)
        .map(lambda row: {**row, "words": len(row["answer"].split())}, name="count")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--directory", type=Path, default=Path("paid-api-data"))
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--url", help="of the service; without it a server is started here")
    parser.add_argument("--model", default="small")
    parser.add_argument("--spark", action="store_true", help="run the workers as Spark tasks")
    given = parser.parse_args()
    given.directory.mkdir(exist_ok=True)
    with ExitStack() as stack:
        server = None
        if not given.url:
            # Calls take 50 ms, some are refused, and some are paid and not answered.
            faults = ("--delay-ms=50", "--fault=429=0.02", "--fault=500_after=0.02")
            bill = given.directory / "bill.ndjson"
            options = ("--honour-keys", "--retry-after-s=0.2", *faults)
            server = stack.enter_context(PaidServer(bill, *options))
        workspace = stack.enter_context(hr.open(given.directory / "workspace"))
        url = f"{server.url}/v1" if server else given.url
        descriptions = build(workspace, given.rows, url, given.model)
        summary = descriptions.run(hr.spark.session() if given.spark else None)
        asked = summary.stages["ask"]
        print(
            f"{asked.rows_out} rows in this run: {asked.calls} calls made, {asked.reused} avoided,"
            f" {asked.dead} rows given up, {asked.cost:.6f} dollars"
        )
        print(f"{descriptions.collect().num_rows} rows in all")
        if server:
            paid = sum(server.paid().values())
            print(f"the server was paid for {paid} calls, {server.repeated} of them repeated")


if __name__ == "__main__":
    main()
