"""The rules of the code base that no linter knows. Each is also shown to find what it forbids."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path, PurePosixPath

import pytest

pytestmark = pytest.mark.long  # `make check` runs it

PROJECT = Path(__file__).parent.parent

LAYERS = (
    {
        "errors",
        "ids",
        "python_file",
        "clock",
        "files",
        "settings",
        "decoders",
        "arrow_numbers",
        "frontier",
        "frontier_rows",
        "backoff",
        "version",
    },
    {"log", "storage", "transport"},
    {"journal"},
    {"shuffle", "queues", "ingest", "exchange"},
    {"stores", "plan"},
    {"pipeline"},
    {"spark"},
    {"__init__"},  # the public API
    {"bench", "dashboard"},
    {"cli"},
)
"""Each imports only from the left of it and from its own package; the first is one package.

`testing` is what users and our tests build on: it sees what is below `spark`, and nothing but tests
sees it.
"""

KNOWN = set().union(*LAYERS) | {"testing"}

IMPURE = {
    *("asyncio", "concurrent", "multiprocessing", "subprocess", "threading"),
    *("fcntl", "io", "os", "pathlib", "select", "selectors", "shutil", "signal", "tempfile"),
    *("socket", "pyarrow.flight", "pyarrow.fs", "obstore"),
    *("random", "secrets", "time", "uuid"),
}
VAGUE = re.compile(r"(^|_)(utils?|helpers?|common|misc|managers?)($|_)|(Utils?|Helper|Manager)$")
VERSIONED = re.compile(r"(_v|V)\d+$|_(old|new)$")
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(work|root|home)/\w")
MAKE_COMMAND = re.compile(r"(?:^|`)make ([a-z][a-z-]*)", re.MULTILINE)

SHARED_MODULE_NAMES = {
    *("__init__", "state", "actor", "handler"),  # a component that is a protocol has each of these
    "effects",  # what a state tells its actor to do
    "contract",  # what every implementation in a folder keeps to
    "messages",  # what a component sends
}
GERUNDS = {
    "binding": "a noun: one source of a task",
    "routing": "a noun: which member a document goes to",
}

FILE_LINES_MAX = 450
FUNCTION_LINES_MAX = 60


@dataclass(frozen=True)
class Source:
    """A Python file; `path` is relative to the project."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All of the tree: several rules look at each."""
        return list(ast.walk(self.tree))

    @property
    def package(self) -> tuple[str, ...]:
        """Where it lives in `headrace`, such as ("journal", "local", "state"); else nothing."""
        parts = PurePosixPath(self.path).with_suffix("").parts
        return parts[2:] if parts[:2] == ("src", "headrace") else ()

    @property
    def is_pure(self) -> bool:
        docstring = ast.get_docstring(self.tree) or ""
        return self.package[-1:] == ("state",) or re.search(r"\bPure\.", docstring) is not None

    def imports(self) -> Iterator[tuple[int, str]]:
        """(line, dotted name) of all imports; `from a import b` is `a.b`."""
        for node in self.nodes:
            if isinstance(node, ast.Import):
                yield from ((node.lineno, each.name) for each in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from ((node.lineno, f"{node.module}.{each.name}") for each in node.names)

    def calls(self, *names: str) -> Iterator[int]:
        for node in self.nodes:
            if isinstance(node, ast.Call) and _dotted(node.func) in names:
                yield node.lineno


def _dotted(called: ast.expr) -> str:
    """`a.b.c`; of what is called otherwise only the names at its end."""
    match called:
        case ast.Name(name):
            return name
        case ast.Attribute(value, name):
            return f"{_dotted(value)}.{name}"
    return ""


Rule = Callable[[Source], Iterator[tuple[int, str]]]


def imports_point_left(source: Source) -> Iterator[tuple[int, str]]:
    if not source.package:
        return
    here = source.package[0]
    for line, name in source.imports():
        if (there := _component(name)) and there != here and not _may_import(here, there):
            yield line, f"{here} may not import {there}: see LAYERS"


def _component(name: str) -> str | None:
    """The part of `headrace` that an imported name is in."""
    package, _, rest = name.partition(".")
    if package != "headrace":
        return None
    component = rest.partition(".")[0]
    return component if component in KNOWN else "__init__"


def _may_import(here: str, there: str) -> bool:
    if there == "testing":
        return False
    allowed = _rank("spark") if here == "testing" else _rank(here)
    return _rank(there) < allowed or _rank(there) == _rank(here) == 0


def _rank(component: str) -> int:
    return next((rank for rank, layer in enumerate(LAYERS) if component in layer), len(LAYERS))


def imports_are_absolute(source: Source) -> Iterator[tuple[int, str]]:
    for node in source.nodes:
        if isinstance(node, ast.ImportFrom) and node.level:
            yield node.lineno, "name the module from `headrace` on"


def pyspark_stays_in_spark(source: Source) -> Iterator[tuple[int, str]]:
    if source.package and source.package[0] != "spark":
        for line, name in source.imports():
            if name.split(".")[0] in {"pyspark", "py4j"}:
                yield line, f"{name} is imported outside of headrace.spark"


def pure_modules_do_no_io(source: Source) -> Iterator[tuple[int, str]]:
    if source.package and source.is_pure:
        for line, name in source.imports():
            parts = name.split(".")
            if IMPURE & {".".join(parts[:n]) for n in range(1, len(parts) + 1)}:
                yield line, f"a pure module imports {name}: pass in what it gives"


def names_say_what_a_thing_is(source: Source) -> Iterator[tuple[int, str]]:
    named = [(1, part) for part in PurePosixPath(source.path).with_suffix("").parts]
    for node in source.nodes:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            named.append((node.lineno, node.name))
    for line, name in named:
        if VAGUE.search(name):
            yield line, f"{name}: name it for what it is"
        if VERSIONED.search(name):
            yield line, f"{name}: names have no versions"


def modules_are_nouns(source: Source) -> Iterator[tuple[int, str]]:
    name = PurePosixPath(source.path).stem
    if source.package and name.endswith("ing") and name not in GERUNDS:
        yield 1, f"{name}: name it for the thing it has, or list it in GERUNDS with a reason"


def only_commands_print(source: Source) -> Iterator[tuple[int, str]]:
    if source.package and source.package[0] not in {"cli", "bench", "testing"}:
        for line in source.calls("print"):
            yield line, "only cli, bench and testing print"


def nothing_is_left_for_later(source: Source) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(source.text.splitlines(), 1):
        if found := UNFINISHED.search(line):
            yield number, f"{found[0]}: do it, or leave it out"


def files_are_one_idea(source: Source) -> Iterator[tuple[int, str]]:
    lines = len(source.text.splitlines())
    if source.package and lines > FILE_LINES_MAX:
        yield lines, f"more than {FILE_LINES_MAX} lines: split it"


def functions_fit_a_screen(source: Source) -> Iterator[tuple[int, str]]:
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if source.package and lines > FUNCTION_LINES_MAX:
                yield node.lineno, f"{node.name} has more than {FUNCTION_LINES_MAX} lines: split it"


def modules_say_what_they_are(source: Source) -> Iterator[tuple[int, str]]:
    if source.package and source.tree.body and not ast.get_docstring(source.tree):
        yield 1, "the module has no docstring"


def annotations_are_not_evaluated(source: Source) -> Iterator[tuple[int, str]]:
    names = {name for _, name in source.imports()}
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.AnnAssign)
    annotated = any(isinstance(node, definitions) for node in source.tree.body)
    if annotated and "__future__.annotations" not in names:
        yield 1, "`from __future__ import annotations` is missing"


def no_error_is_swallowed(source: Source) -> Iterator[tuple[int, str]]:
    """A broad `except` must raise, or pass the error on."""
    for node in source.nodes:
        if isinstance(node, ast.ExceptHandler) and _is_broad(node.type):
            inside = [each for statement in node.body for each in ast.walk(statement)]
            raises = any(isinstance(each, ast.Raise) for each in inside)
            passes_on = any(isinstance(each, ast.Name) and each.id == node.name for each in inside)
            if not raises and not passes_on:
                yield node.lineno, "a broad except swallows the error"
        if isinstance(node, ast.Call) and _dotted(node.func).endswith("suppress"):
            broad = [each for each in node.args if _is_broad(each)]
            yield from ((each.lineno, "suppress swallows every error") for each in broad)


def _is_broad(caught: ast.expr | None) -> bool:
    if isinstance(caught, ast.Tuple):
        return any(_is_broad(each) for each in caught.elts)
    return caught is None or ast.unparse(caught) in {"Exception", "BaseException"}


def no_test_sleeps(source: Source) -> Iterator[tuple[int, str]]:
    if source.path.startswith("tests/"):
        for line in source.calls("time.sleep", "sleep"):
            yield line, "tests do not sleep: wait for the thing, with a bound"


def types_are_decoded_by_decoders(source: Source) -> Iterator[tuple[int, str]]:
    """Threads that decode a Struct with msgspec for the first time crash each other's process."""
    if not source.package or source.package == ("decoders",):
        return
    for line in source.calls("msgspec.convert"):
        yield line, "use headrace.decoders.convert"
    for node in source.nodes:
        if (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) in ("msgspec.json.decode", "msgspec.msgpack.decode")
            and any(each.arg == "type" for each in node.keywords)
        ):
            yield node.lineno, "use headrace.decoders"


RULES: tuple[Rule, ...] = (
    imports_point_left,
    imports_are_absolute,
    pyspark_stays_in_spark,
    pure_modules_do_no_io,
    names_say_what_a_thing_is,
    modules_are_nouns,
    only_commands_print,
    nothing_is_left_for_later,
    files_are_one_idea,
    functions_fit_a_screen,
    modules_say_what_they_are,
    annotations_are_not_evaluated,
    no_error_is_swallowed,
    no_test_sleeps,
    types_are_decoded_by_decoders,
)

FUTURE = "from __future__ import annotations\n"
LONG_BODY = "    pass\n" * FUNCTION_LINES_MAX

FORBIDDEN: list[tuple[Rule, str, str]] = [
    (imports_point_left, "log/a.py", "import headrace.journal.names"),
    (imports_point_left, "log/a.py", "from headrace import storage"),
    (imports_point_left, "log/a.py", "from headrace import Workspace"),
    (imports_point_left, "log/a.py", "import headrace"),
    (imports_point_left, "log/a.py", "def f():\n    from headrace.transport import Server"),
    (imports_point_left, "errors.py", "from headrace.log import Log"),
    (imports_point_left, "queues/a.py", "from headrace.shuffle import follow"),
    (imports_point_left, "spark/a.py", "from headrace.cli import main"),
    (imports_point_left, "journal/a.py", "from headrace.testing.power import Disk"),
    (imports_point_left, "cli/a.py", "import headrace.testing"),
    (imports_point_left, "testing/a.py", "from headrace.spark import Session"),
    (imports_point_left, "__init__.py", "from headrace.cli import main"),
    (imports_are_absolute, "log/a.py", "from . import disk"),
    (pyspark_stays_in_spark, "pipeline/a.py", "from pyspark.sql import SparkSession"),
    (pyspark_stays_in_spark, "pipeline/a.py", "import py4j"),
    (pure_modules_do_no_io, "shuffle/slice/state.py", "import time"),
    (pure_modules_do_no_io, "shuffle/slice/state.py", "import pyarrow.flight as fl"),
    (pure_modules_do_no_io, "shuffle/slice/state.py", "from pyarrow import flight"),
    (pure_modules_do_no_io, "plan/cut.py", '"""Cuts. Pure."""\nfrom os import path'),
    (names_say_what_a_thing_is, "log/utils.py", ""),
    (names_say_what_a_thing_is, "common/a.py", ""),
    (names_say_what_a_thing_is, "log/a.py", "class LogManager: ..."),
    (names_say_what_a_thing_is, "log/a.py", "def read_helper(): ..."),
    (names_say_what_a_thing_is, "log/a.py", "class SessionV2: ..."),
    (names_say_what_a_thing_is, "log/reader_v2.py", ""),
    (modules_are_nouns, "shuffle/announcing.py", ""),
    (only_commands_print, "log/a.py", "print(1)"),
    (nothing_is_left_for_later, "log/a.py", "a = 1  # TO" + "DO: b"),
    (files_are_one_idea, "log/a.py", "a = 1\n" * (FILE_LINES_MAX + 1)),
    (functions_fit_a_screen, "log/a.py", "def f():\n" + LONG_BODY),
    (modules_say_what_they_are, "log/a.py", "a = 1"),
    (annotations_are_not_evaluated, "log/a.py", "import os\ndef f(): ..."),
    (no_error_is_swallowed, "log/a.py", "try:\n    f()\nexcept:\n    pass"),
    (no_error_is_swallowed, "log/a.py", "try:\n    f()\nexcept Exception:\n    log()"),
    (no_error_is_swallowed, "log/a.py", "try:\n    f()\nexcept (OSError, Exception):\n    g()"),
    (no_error_is_swallowed, "log/a.py", "try:\n    f()\nexcept Exception as e:\n    g()"),
    (no_error_is_swallowed, "log/a.py", "with contextlib.suppress(Exception):\n    f()"),
    (no_test_sleeps, "../../tests/test_a.py", "time.sleep(1)"),
    (types_are_decoded_by_decoders, "log/a.py", "msgspec.json.decode(data, type=Seal)"),
    (types_are_decoded_by_decoders, "log/a.py", "found = msgspec.convert(value, Seal)"),
]

ALLOWED: list[tuple[Rule, str, str]] = [
    (imports_point_left, "log/a.py", "from headrace import errors\nfrom headrace.log import b"),
    (imports_point_left, "frontier.py", "from headrace.clock import Clock"),
    (imports_point_left, "cli/a.py", "import headrace as hr\nfrom headrace.bench import disk"),
    (imports_point_left, "cli/a.py", "from headrace import Workspace"),
    (imports_point_left, "testing/a.py", "from headrace.shuffle import oracle"),
    (imports_point_left, "testing/a.py", "from headrace.pipeline.job import Job"),
    (imports_point_left, "../../tests/test_a.py", "from headrace.testing import power"),
    (pyspark_stays_in_spark, "spark/a.py", "import pyspark"),
    (pure_modules_do_no_io, "log/a.py", "import os"),
    (pure_modules_do_no_io, "plan/state.py", "import pyarrow as pa\nfrom datetime import time"),
    (names_say_what_a_thing_is, "log/a.py", "def commonest(): ..."),
    (modules_are_nouns, "shuffle/binding.py", ""),
    (only_commands_print, "cli/commands/demo.py", "print(1)"),
    (files_are_one_idea, "log/a.py", "a = 1\n" * FILE_LINES_MAX),
    (modules_say_what_they_are, "log/__init__.py", ""),
    (annotations_are_not_evaluated, "log/a.py", FUTURE + "def f(): ..."),
    (annotations_are_not_evaluated, "log/__init__.py", "from headrace.log.log import Log"),
    (no_error_is_swallowed, "log/a.py", "try:\n    f()\nexcept Exception:\n    g()\n    raise"),
    (no_error_is_swallowed, "log/a.py", "try:\n    f()\nexcept Exception as e:\n    fail(e)"),
    (no_error_is_swallowed, "log/a.py", "try:\n    f()\nexcept OSError:\n    pass"),
    (types_are_decoded_by_decoders, "log/a.py", "msgspec.json.decode(data)"),
]


@cache
def sources() -> list[Source]:
    paths = [path for root in ("src", "tests") for path in sorted((PROJECT / root).rglob("*.py"))]
    return [Source(str(path.relative_to(PROJECT)), path.read_text()) for path in paths]


def in_package(path: str, text: str) -> Source:
    inside = f"src/headrace/{path}".replace("src/headrace/../../", "")
    return Source(inside, text)


def name_of(value: object) -> str | None:
    return getattr(value, "__name__", None)


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_the_source_follows(rule: Rule) -> None:
    found = [f"{each.path}:{line}: {what}" for each in sources() for line, what in rule(each)]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(("rule", "path", "text"), FORBIDDEN, ids=name_of)
def test_a_rule_finds_what_it_forbids(rule: Rule, path: str, text: str) -> None:
    assert list(rule(in_package(path, text)))


@pytest.mark.parametrize(("rule", "path", "text"), ALLOWED, ids=name_of)
def test_a_rule_accepts_what_it_allows(rule: Rule, path: str, text: str) -> None:
    assert list(rule(in_package(path, text))) == []


def test_every_rule_is_shown_to_find_something() -> None:
    assert {rule for rule, _, _ in FORBIDDEN} == set(RULES)


def test_every_component_has_its_layer() -> None:
    assert {each.package[0] for each in sources() if each.package} <= KNOWN


def named_twice(names: Iterable[tuple[str, str]]) -> list[str]:
    """Return each name that several (name, path) pairs have, with their paths."""
    paths: dict[str, list[str]] = {}
    for name, path in names:
        paths.setdefault(name, []).append(path)
    return [f"{name}: {', '.join(found)}" for name, found in paths.items() if len(found) > 1]


def module_names(sources: Iterable[Source]) -> Iterator[tuple[str, str]]:
    for source in sources:
        if source.package and source.package[-1] not in SHARED_MODULE_NAMES:
            yield source.package[-1], source.path


def class_names(sources: Iterable[Source]) -> Iterator[tuple[str, str]]:
    for source in sources:
        classes = (node for node in source.nodes if isinstance(node, ast.ClassDef))
        # A class whose name begins with _ is known in its own file only.
        public = (node for node in classes if not node.name.startswith("_"))
        yield from ((node.name, source.path) for node in public if source.package)


def test_no_two_modules_have_the_same_name() -> None:
    assert named_twice(module_names(sources())) == []


def test_no_two_classes_have_the_same_name() -> None:
    assert named_twice(class_names(sources())) == []


def test_names_that_are_used_twice_are_found() -> None:
    given = [in_package(path, "class A: ...") for path in ("log/a.py", "storage/a.py")]
    given += [in_package(path, "") for path in ("shuffle/queue/state.py", "journal/local/state.py")]
    paths = "src/headrace/log/a.py, src/headrace/storage/a.py"
    assert named_twice(module_names(given)) == [f"a: {paths}"]
    assert named_twice(class_names(given)) == [f"A: {paths}"]


def unnamed_modules(sources: Iterable[Source], page: str) -> list[str]:
    """Return the modules that the page's table of the tree does not name.

    A row begins with a folder in backquotes, and names the folder's modules in backquotes.
    """
    rows = re.findall(r"^\| `([\w/]+)/` \|(.*)\|$", page, re.MULTILINE)
    named = {f"{folder}/{name}" for folder, text in rows for name in re.findall(r"`(\w+)`", text)}
    packages = [each.package for each in sources if each.package[-1:] not in {(), ("__init__",)}]
    modules = (f"{'/'.join(folders) or 'headrace'}/{name}" for *folders, name in packages)
    return [module for module in modules if module not in named]


def test_architecture_names_every_module() -> None:
    assert unnamed_modules(sources(), (PROJECT / "ARCHITECTURE.md").read_text()) == []


def test_a_module_that_architecture_does_not_name_is_found() -> None:
    paths = ("log/disk.py", "log/format.py", "log/__init__.py", "clock.py", "ids.py")
    page = "| `headrace/` | `clock` |\n| `log/` | `disk` writes |"
    given = [in_package(path, "") for path in paths]
    assert unnamed_modules(given, page) == ["log/format", "headrace/ids"]


def missing_code(page: str) -> list[str]:
    """Return each `module.py` `name` of the page whose module does not define the name."""
    named = re.findall(r"`([\w/]+\.py)` `(\w+)`", page)
    assert named
    by_path = {each.path: each for each in sources()}
    return [
        f"{path}: {name}"
        for path, name in named
        if name not in defined_names(by_path.get(f"src/headrace/{path}"))
    ]


def defined_names(source: Source | None) -> set[str]:
    nodes = source.nodes if source else []
    definitions = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    names = (node for node in nodes if isinstance(node, ast.Name))
    assigned = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    return assigned | {node.name for node in nodes if isinstance(node, definitions)}


def test_architecture_says_where_ideas_are() -> None:
    assert missing_code((PROJECT / "ARCHITECTURE.md").read_text()) == []


def test_an_idea_that_is_not_where_architecture_says_is_found() -> None:
    page = "`errors.py` `HeadraceError`, `errors.py` `Nothing`, `nowhere.py` `Nothing`"
    assert missing_code(page) == ["errors.py: Nothing", "nowhere.py: Nothing"]


def written_files() -> Iterator[Path]:
    """What people write: all but environments, caches and builds."""
    for name in (".ci", "docs", "examples", "src", "tests"):
        yield from (each for each in (PROJECT / name).rglob("*") if each.is_file())
    # In a linked worktree .git is a file that git writes.
    yield from (each for each in PROJECT.iterdir() if each.is_file() and each.name != ".git")


def machine_paths(text: str) -> list[str]:
    return [line for line in text.splitlines() if MACHINE_PATH.search(line)]


def test_no_file_names_a_path_of_one_machine() -> None:
    found = [
        f"{path.relative_to(PROJECT)}: {line}"
        for path in written_files()
        if path.suffix not in {".pyc", ".png"}
        for line in machine_paths(path.read_text())
    ]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("text", "finds"),
    [("cd /ro" + "ot/project", True), ("'/ho" + "me/ann'", True), ("src/home/x /tmp/a", False)],
)
def test_a_path_of_one_machine_is_recognized(text: str, finds: bool) -> None:
    assert bool(machine_paths(text)) is finds


def make_commands(*names: str) -> set[str]:
    paths = [path for name in names for path in PROJECT.glob(name)]
    return {command for path in paths for command in MAKE_COMMAND.findall(path.read_text())}


def test_every_documented_command_exists() -> None:
    targets = re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE)
    documented = make_commands("*.md", "docs/*.md", ".ci/run")
    assert documented
    assert documented - set(targets) == set()


def test_ci_runs_documented_commands_and_nothing_else() -> None:
    lines = (PROJECT / ".ci" / "run").read_text().splitlines()
    commands = [line for line in lines if re.match(r"(?!#|set |cd |export )\S", line)]
    assert commands
    assert all(command.startswith("make ") for command in commands)
    assert make_commands(".ci/run") <= make_commands("README.md", "CONTRIBUTING.md")
