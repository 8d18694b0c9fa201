"""Owns the rules of the house: who may import whom, who may touch what, how a module begins.
May touch the source files, read-only, by their syntax trees.
Never runs what it reads, except to see what that loads.
"""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("supervisor", "sandbox")
MAX_LINES = 600
PURE = ("supervisor/limits/", "supervisor/policy/")
IMPURE = {"os", "socket", "subprocess", "time", "sqlite3", "asyncio", "threading", "pathlib", "random"}
STATEMENTS = (
    "SELECT ",
    "INSERT INTO",
    "UPDATE ",
    "DELETE FROM",
    "CREATE TABLE",
    "PRAGMA ",
    "BEGIN IMMEDIATE",
)
WRITING_CALLS = {"write", "writelines", "write_text", "write_bytes", "pwrite", "sendmsg", "sendall", "sendto"}


@functools.cache
def modules() -> dict[str, ast.Module]:
    """Every module of the two packages: path below the root, and its tree."""
    paths = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    assert len(paths) > 50
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in paths}


def name_of(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def imports(tree: ast.AST) -> Iterator[str]:
    """Full names of what is imported anywhere in it, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, "imports are absolute"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def importers(wanted: str) -> set[str]:
    return {
        path
        for path, tree in modules().items()
        if any(name == wanted or name.startswith(f"{wanted}.") for name in imports(tree))
    }


def test_control_the_reader_sees_imports() -> None:
    tree = ast.parse("import a.b\ndef f():\n    from c import d\n")
    assert list(imports(tree)) == ["a.b", "c", "c.d"]
    assert "supervisor/runs/life.py" in importers("sandbox.client")


def test_the_sandbox_knows_nothing_of_the_supervisor() -> None:
    assert [path for path in importers("supervisor") if path.startswith("sandbox/")] == []


def test_limits_and_policy_do_nothing_but_compute() -> None:
    for path, tree in modules().items():
        if path.startswith(PURE):
            assert {name.split(".")[0] for name in imports(tree)} & IMPURE == set(), path


def test_sqlite_is_in_the_store_alone() -> None:
    assert all(path.startswith("supervisor/store/") for path in importers("sqlite3"))
    assert importers("sqlite3"), "control"


def test_psycopg_is_in_one_module_that_sqlite_users_never_load() -> None:
    assert importers("psycopg") == {"supervisor/store/postgres.py"}
    assert {path.partition("/store/")[0] for path in importers("supervisor.store.postgres")} == {"supervisor"}
    code = "import sys, supervisor.daemon; sys.exit('psycopg' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def docstrings(tree: ast.Module) -> set[int]:
    """Where the strings are that only say something, by line."""
    return {
        node.value.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def test_sql_is_in_the_store_alone() -> None:
    found = set()
    for path, tree in modules().items():
        said = docstrings(tree)
        for node in ast.walk(tree):
            text = node.value if isinstance(node, ast.Constant) and node.lineno not in said else None
            if isinstance(text, str) and any(statement in text for statement in STATEMENTS):
                found.add(path)
    assert {path for path in found if not path.startswith("supervisor/store/")} == set()
    assert "supervisor/store/sqlite.py" in found, "control"


def test_ctypes_is_in_one_module() -> None:
    """And in the program that tries to get out, which runs in a box and is imported by nobody."""
    found = {path for path in importers("ctypes") if not path.startswith("sandbox/probes/inside/")}
    assert found == {"sandbox/syscalls.py"}
    outside = {
        path for path in importers("sandbox.probes.inside") if not path.startswith("sandbox/probes/inside/")
    }
    assert outside == set()


def test_only_the_log_book_writes_an_agents_words() -> None:
    """Of all that handles lines, one module calls anything that writes; the pages are only printed."""
    writers = {
        path
        for path, tree in modules().items()
        if path.startswith("supervisor/logs/")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in WRITING_CALLS
    }
    # The other one holds how far files were read, and no line of them.
    assert writers == {"supervisor/logs/book.py", "supervisor/logs/tail/kept.py"}
    openers = {
        path
        for path, tree in modules().items()
        if any(isinstance(node, ast.Constant) and node.value == "log.ndjson" for node in ast.walk(tree))
    }
    assert openers <= {"supervisor/paths.py", "supervisor/logs/book.py"}


def test_the_commands_decide_nothing_by_sql_or_signals() -> None:
    for path, tree in modules().items():
        if path.startswith("supervisor/cli/"):
            called = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
            assert "pidfd_send_signal" not in called and "killpg" not in called, path


def test_package_files_are_empty() -> None:
    for package in PACKAGES:
        for path in (ROOT / package).rglob("__init__.py"):
            assert path.read_text() == "", path


@pytest.mark.parametrize("package", PACKAGES)
def test_every_folder_of_modules_is_a_package(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        assert (path.parent / "__init__.py").exists(), path


def graph() -> dict[str, set[str]]:
    """Imports at the top level between our modules; what a function imports when used is no cycle."""
    names = {name_of(path) for path in modules()}
    found: dict[str, set[str]] = {}
    for path, tree in modules().items():
        top = ast.Module(
            body=[n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)], type_ignores=[]
        )
        found[name_of(path)] = {name for name in imports(top) if name in names} - {name_of(path)}
    return found


def test_no_import_runs_in_a_circle() -> None:
    edges = {name: {n for n in found if n not in PACKAGES} for name, found in graph().items()}
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join([*way, name])
        if name not in done:
            for other in sorted(edges[name]):
                visit(other, (*way, name))
            done.add(name)

    for name in edges:
        visit(name, ())
    assert "sandbox.client" in edges["supervisor.runs.life"], "control"


def source_files() -> list[Path]:
    return sorted(
        path
        for folder in (*PACKAGES, "tests")
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "__init__.py"
    )


@pytest.mark.parametrize("path", source_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_begins_by_saying_what_it_owns(path: Path) -> None:
    text = path.read_text()
    said = ast.get_docstring(ast.parse(text), clean=False)
    assert said is not None and text.startswith('"""Owns '), "no docstring"
    lines = said.rstrip("\n").split("\n")
    assert lines[0].startswith("Owns "), lines[0]
    assert lines[1].startswith("May touch "), lines[1]
    assert lines[2].startswith("Never "), lines[2]
    if path.relative_to(ROOT).parts[0] in PACKAGES:
        assert len(text.splitlines()) <= MAX_LINES
