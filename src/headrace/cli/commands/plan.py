"""`headrace plan`: the stages that queries are cut into."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.render.output import JsonOption, as_example, print_json, print_line
from headrace.errors import HeadraceError, UsageError
from headrace.python_file import blamed

if TYPE_CHECKING:
    from headrace.plan.query import Query

app = typer.Typer(no_args_is_help=True, help="See the stages that queries are cut into.")


class PlanFormat(StrEnum):
    text = "text"
    mermaid = "mermaid"
    dot = "dot"


@app.command(epilog=as_example("headrace plan show revenue.py --format mermaid"))
def show(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A Python file that defines queries.")
    ],
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]", help="The variable of the query. Default: all.", show_default=False
        ),
    ] = "",
    format: Annotated[
        PlanFormat | None,
        typer.Option(help="Mermaid and DOT draw one query. Default: text.", show_default=False),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show the stages of queries, and what each reads and does.

    A stage ends where rows are shuffled. The file is run for what it defines; no query is run.
    """
    if json and format:
        raise typer.BadParameter("cannot be combined with --format", param_hint="--json")
    from headrace.plan.query_file import choose_query, load_queries

    queries = load_queries(file)
    if name:
        queries = {name: choose_query(queries, name)}
    if format in (PlanFormat.mermaid, PlanFormat.dot) and len(queries) > 1:
        raise UsageError(
            f"{file} defines {len(queries)} queries, and {format} draws one",
            do=f"name one of {', '.join(queries)}",
        )
    try:
        _print(queries, format or PlanFormat.text, json=json)
    except HeadraceError:
        raise
    except Exception as error:  # of a source of the file, asked for its name
        if found := blamed(error, [file]):
            raise found from error
        raise


def _print(queries: dict[str, Query], format: PlanFormat, *, json: bool) -> None:
    from headrace.plan.diagram import draw

    if json:
        print_json([_described(*each) for each in queries.items()])
    elif format is not PlanFormat.text:
        [query] = queries.values()
        print_line(draw(query.stages, "dot" if format is PlanFormat.dot else "mermaid"))
    else:
        texts = (f"query {name}\n\n{draw(each.stages)}" for name, each in queries.items())
        print_line("\n\n".join(texts))


def _described(name: str, query: Query) -> dict[str, Any]:
    from headrace.plan.diagram import operator_line

    schema = query.schema
    return {
        "query": name,
        "columns": None if schema is None else {each.name: str(each.type) for each in schema},
        "stages": [
            {
                "stage": stage.stage_id,
                "after": stage.parents,
                "tasks": stage.partitions or None,
                "operators": [operator_line(each) for each in stage.operators],
            }
            for stage in query.stages.stages
        ],
    }
