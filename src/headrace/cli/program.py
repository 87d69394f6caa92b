"""The program: its commands, and how every one of them ends.

A command that fails prints one line on stderr, `error: what; what to do`. Exit codes: 0 success, 1
an error, 2 a command line that the program does not understand, 3 a commit in doubt, 4 a pipeline
that its budget paused, 130 interrupted, 141 nobody reads the output any more. An exception that is
not one of Headrace's errors is a bug and keeps its traceback.
"""

from __future__ import annotations

import io
import os
import sys
from importlib.abc import MetaPathFinder
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import headrace as hr
from headrace.cli.commands import (
    bench,
    collections,
    dead_letter,
    demo,
    doctor,
    exchange,
    journals,
    outcome,
    pipeline,
    plan,
    publish,
    read,
    run,
    serve,
    shuffle,
    store_commands,
    task,
)
from headrace.cli.render.output import as_example, print_error

_IN_DOUBT = 3
_BROKEN_PIPE = 141
_ARGUMENT_CHARS_SHOWN = 60
_WITHOUT_SPARK = {
    *("collections", "dead-letters", "exchange", "journals", "outcome", "publish", "read", "serve"),
    "shuffle",
    "store",
}
"""Commands that run nothing of the user's and nothing of Spark's."""


class _WithoutPandas(MetaPathFinder):
    """Hides pandas, which PyArrow imports with its first array if it finds it.

    Without it a command takes a third less time.
    """

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("this command works without pandas", name=fullname)


class Program(TyperGroup):
    def main(self, *args: Any, **options: Any) -> Any:
        try:
            code = super().main(*args, **{**options, "standalone_mode": False})
        except typer.TyperException as error:
            code = _show_usage_error(error)
        except typer.Abort:
            code = 1
        sys.exit(code)

    def invoke(self, ctx: Any) -> Any:
        try:
            super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # Without this, Python would try to flush the rest again when it exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(_BROKEN_PIPE) from None
        except hr.InDoubtError as error:
            print_error(_as_command(error))
            raise typer.Exit(_IN_DOUBT) from None
        except hr.HeadraceError as error:
            print_error(str(error))
            raise typer.Exit(1) from None
        except UnicodeEncodeError as error:
            # Python marks bytes of the command line and the environment that are not text so.
            if error.reason != "surrogates not allowed":
                raise
            print_error(f"{error.object[:_ARGUMENT_CHARS_SHOWN]!r} is not UTF-8; use UTF-8 text")
            raise typer.Exit(1) from None


def _as_command(error: hr.InDoubtError) -> str:
    """Return the error with the command that asks for the outcome instead of the call."""
    return str(error).replace(f"ws.outcome('{error.id}')", f"`headrace outcome {error.id}`")


def _show_usage_error(error: typer.TyperException) -> int:
    context: typer.Context | None = getattr(error, "ctx", None)
    if context and error.message == context.get_help():
        # The user named a group without a command.
        print(error.message, file=sys.stderr)
        return error.exit_code
    message = error.format_message().rstrip(".")
    help = f"`{context.command_path} --help`" if context else "--help"
    print_error(f"{message}; see {help}")
    return error.exit_code


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"headrace {hr.__version__}")
        raise typer.Exit


app = typer.Typer(
    name="headrace",
    cls=Program,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=as_example("headrace collections create greetings 'text string'"),
)


@app.callback()
def headrace(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Exactly-once pipelines on Spark.

    A workspace is a directory, or the address of its owner (grpc://host:port). Commands take it
    from --workspace, HEADRACE_WORKSPACE, or use ./headrace-data.
    """


app.add_typer(collections.app, name="collections")
app.add_typer(journals.app, name="journals")
publish.register(app)
outcome.register(app)
read.register(app)
serve.register(app)
app.add_typer(shuffle.app, name="shuffle")
run.register(app)
app.add_typer(task.app, name="task")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(dead_letter.app, name="dead-letters")
app.add_typer(plan.app, name="plan")
app.add_typer(exchange.app, name="exchange")
app.add_typer(store_commands.app, name="store")
doctor.register(app)
demo.register(app)
app.add_typer(bench.app, name="bench")


def main() -> None:
    # gRPC would print its own report of errors that the program prints as one line.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name that the terminal cannot show must not fail the command; stderr does the same.
        sys.stdout.reconfigure(errors="backslashreplace")
    if _WITHOUT_SPARK.intersection(sys.argv[1:2]):
        sys.meta_path.insert(0, _WithoutPandas())
    app()
