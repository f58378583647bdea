"""The arrows between layers and files, read from the source: imports (of types, too), circles, places of jit, names.

`LAYERS` is the only table to change when a layer is added. Small wrong sources test the checker itself.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

from fr3e_jax.answers import __all__ as DOOR

PACKAGE = "fr3e_jax"
ROOT = Path(__file__).resolve().parents[1]
DEVICE_LIBRARIES = {"jax", "jaxlib", "flax", "optax", "orbax"}
FILES_AND_CLOCK = {"io", "json", "logging", "os", "pathlib", "pickle", "shutil", "tempfile", "time", "transformers"}
COMPILERS = {"jax.jit", "jax.pmap", "jax.experimental.pjit.pjit", "flax.nnx.jit", "flax.nnx.pmap"}


@dataclass(frozen=True)
class Layer:
    """The imports from this package that a folder may make, and the names that it must not use from anywhere."""

    may_import: set[str] = field(default_factory=set)
    must_not_name: set[str] = field(default_factory=set)  # dotted prefixes of modules and attributes, and builtins
    compiles: bool = False


LAYERS = {
    "objectives": Layer(
        must_not_name=FILES_AND_CLOCK | {"jax.random", "numpy.random", "random", "omegaconf", "flax", "open", "print"}
    ),
    "policy": Layer({"objectives"}, {"omegaconf", "time"}),
    "programs": Layer({"objectives", "policy"}, FILES_AND_CLOCK | {"omegaconf", "open"}, compiles=True),
    "rewards": Layer({"answers", "configuration"}, DEVICE_LIBRARIES),
    "stores": Layer(must_not_name=DEVICE_LIBRARIES),
    "configuration": Layer({"stores"}),
    "answers": Layer(must_not_name=DEVICE_LIBRARIES),
    "tools": Layer({"configuration", "rewards"}, DEVICE_LIBRARIES),
    "data": Layer({"configuration", "rewards", "stores"}, {"jax", "flax", "optax"}),
    "rollouts": Layer({"policy", "programs", "configuration", "cluster", "data", "tools"}),
    "learning": Layer({"objectives", "policy", "programs", "rollouts", "configuration", "runs"}),
    "runs": Layer({"configuration", "programs", "stores"}),
    "cluster": Layer({"configuration"}),
    "session": Layer(
        {"objectives", "policy", "programs", "rollouts", "learning", "runs", "cluster", "rewards", "data"}
        | {"configuration", "tools", "stores"}
    ),
    "loop": Layer(
        {"objectives", "policy", "programs", "rollouts", "learning", "runs", "cluster", "rewards", "data"}
        | {"configuration", "tools", "stores", "session"}
    ),
    "serving": Layer({"policy", "programs", "rollouts", "data", "configuration", "session"}),
    "verbs": Layer(
        {"objectives", "policy", "programs", "rollouts", "learning", "runs", "cluster", "rewards", "data"}
        | {"configuration", "loop", "stores", "session", "cli", "methods", "planning", "studies", "serving"}
        | {"api"}
    ),
    "planning": Layer({"policy", "programs", "data", "configuration", "learning", "rollouts", "session", "loop"}),
    "studies": Layer({"objectives", "loop", "runs", "rewards", "data", "configuration", "stores", "cli"}),
    "methods": Layer(must_not_name=DEVICE_LIBRARIES),
    "api": Layer(
        {"objectives", "programs", "rollouts", "loop", "runs", "cluster", "rewards", "data", "configuration"}
        | {"session", "studies", "stores"}
    ),
    "cli": Layer({"configuration", "runs", "stores"}, DEVICE_LIBRARIES),  # a verb's module is loaded by its name
}


class AtModuleLevel(ast.NodeTransformer):
    """Drops the functions: their imports run when they are called."""

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        return None

    visit_AsyncFunctionDef = visit_FunctionDef


def dotted(node: ast.AST, aliases: dict[str, str]) -> str | None:
    """``jnp.where`` -> ``jax.numpy.where``; None for an expression that does not start from a plain name."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        base = dotted(node.value, aliases)
        return base and f"{base}.{node.attr}"
    return None


def imports(tree: ast.AST, module: list[str]) -> list[tuple[int, str, str]]:
    """(line, local name, imported target) of each import; relative imports are resolved from ``module``."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, (a.asname or a.name).split(".")[0], a.name) for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = module[: len(module) - node.level] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            found += [(node.lineno, a.asname or a.name, f"{base}.{a.name}") for a in node.names]
    return found


def names_used(tree: ast.AST, module: list[str]) -> set[tuple[int, str]]:
    """(line, full dotted name) of every import and every name used."""
    imported = imports(tree, module)
    # `import a.b` binds `a`, `import a.b as c` binds c to a.b.
    aliases = {local: target if local != target.split(".")[0] else local for _, local, target in imported}
    used = {(line, target) for line, _, target in imported}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and (name := dotted(node, aliases)):
            used.add((node.lineno, name))
    return used


def within(name: str, prefixes: set[str]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def violations(source: str, path: str) -> list[str]:
    """One line for each wrong import or name in a file of the package; ``path`` is relative to the repository."""
    parts = Path(path).with_suffix("").parts
    folder = parts[1] if len(parts) > 2 else None
    if folder is not None and folder not in LAYERS:
        return [f"{path}: folder {folder!r} is in no layer; add it to LAYERS in tests/test_layers.py"]
    layer = LAYERS[folder] if folder else Layer(set(LAYERS), DEVICE_LIBRARIES)
    wrong = []
    for line, name in sorted(names_used(ast.parse(source), list(parts))):
        target = name.split(".")[1] if name.startswith(f"{PACKAGE}.") else None
        if target in LAYERS and target != folder and target not in layer.may_import:
            allowed = ", ".join(sorted(layer.may_import)) or "no other layer"
            wrong.append(f"{path}:{line}: {folder} imports {name}; it may import {allowed}")
        if target == "answers" and folder != "answers" and not {*name.split(".")[2:3]} <= {*DOOR}:
            wrong.append(f"{path}:{line}: {name} is behind the door of {PACKAGE}.answers; import what its __all__ has")
        if within(name, COMPILERS) and not layer.compiles:
            wrong.append(f"{path}:{line}: {name} outside programs/, the only place of compiled programs")
        if within(name, layer.must_not_name):
            wrong.append(f"{path}:{line}: {folder or 'the package root'} must not touch {name}")
    return wrong


def circle(sources: Mapping[str, str]) -> list[str]:
    """The imports of one circle of files, a line each; empty if there is none. ``sources``: path to source."""
    paths = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in sources}
    graph: dict[str, dict[str, int]] = {path: {} for path in sources}  # to each imported file: the line
    for path, source in sources.items():
        tree = AtModuleLevel().visit(ast.parse(source))
        for line, _, name in imports(tree, list(Path(path).with_suffix("").parts)):
            target = paths.get(name) or paths.get(name.rpartition(".")[0])
            if target is not None and target != path:
                graph[path].setdefault(target, line)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        around = reversed(error.args[1])  # from a file to one that it imports
        return [f"{path}:{graph[path][target]} imports {target}" for path, target in pairwise(around)]
    return []


def test_files_import_each_other_in_no_circle():
    """At module level: the lower file takes what it calls as an argument, or both belong into one file."""
    files = (ROOT / PACKAGE).rglob("*.py")
    found = circle({file.relative_to(ROOT).as_posix(): file.read_text() for file in files})
    assert not found, "a circle of imports:\n" + "\n".join(found)


@pytest.mark.parametrize("folder", LAYERS)
def test_layer_keeps_its_arrows(folder):
    files = sorted((ROOT / PACKAGE / folder).rglob("*.py"))
    wrong = [v for file in files for v in violations(file.read_text(), str(file.relative_to(ROOT)))]
    assert not wrong, "\n" + "\n".join(wrong)


def test_every_file_belongs_to_a_layer():
    """Files beside the folders (`__init__`, `__main__`) are loaded by all of them, so they load no device library."""
    folders = {path.parent.name for path in (ROOT / PACKAGE).glob("*/*.py")}
    assert folders <= set(LAYERS), f"add to LAYERS: {sorted(folders - set(LAYERS))}"
    wrong = [
        v for path in (ROOT / PACKAGE).glob("*.py") for v in violations(path.read_text(), f"{PACKAGE}/{path.name}")
    ]
    assert not wrong, "\n" + "\n".join(wrong)


def test_verifier_processes_load_no_jax():
    """The test really imports them, in a fresh process: imports that the source does not show count too."""
    files = (ROOT / PACKAGE / "rewards").rglob("*.py")
    modules = sorted({".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for p in files})
    modules.append("fr3e_jax.data.order_task")  # and what defines a task
    program = "import sys, importlib\nfor m in sys.argv[1:]: importlib.import_module(m)\nsys.exit('jax' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program, *modules], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, f"importing {', '.join(modules)} loads jax or fails: {run.stderr}"


def test_a_training_run_starts_without_libraries_that_only_some_runs_need():
    """Each takes a tenth of a second or more, and tensorboardX brings boto3 along where that is installed.

    Those of extras are among them, and so are the package's own rooms that serve extras.
    """
    slow = {"tensorboardX", "boto3", "sympy", "pandas", "matplotlib", "torch", "transformers", "pyarrow", "httpx"}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {re.split(r"[\[<>=~ ]", each)[0] for members in extras.values() for each in members} - {"jax"}
    slow |= {name.replace("-", "_").removesuffix("_skinny") for name in names}
    own = ("serving", "tools.verifiers_environment", "tools.gymnasium_environment", "verbs.evaluation_files")
    own += ("rewards.judge", "rewards.judge_endpoint", "rewards.judge_texts")
    assert {"starlette", "wandb", "mlflow", "datasets"} <= slow
    program = """if True:
        import sys, fr3e_jax.loop.train
        from fr3e_jax.data.tokenizer import TextCodec
        TextCodec.load("warm_starts/order_long")
        print(*sorted({name.partition('.')[0] for name in sys.modules} | set(sys.modules)))
    """
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not (slow | {f"{PACKAGE}.{name}" for name in own}) & set(run.stdout.split())


@pytest.mark.parametrize(
    ("path", "source", "complaint"),
    [
        ("objectives/x.py", "from fr3e_jax.policy import network", "objectives imports fr3e_jax.policy.network"),
        ("objectives/x.py", "from ..configuration.schema import Config", "objectives imports fr3e_jax.configuration"),
        ("objectives/x.py", "import jax\nk = jax.random.key(0)", ":2: objectives must not touch jax.random"),
        ("objectives/x.py", "from jax import random as r\nr.key(0)", "objectives must not touch jax.random"),
        ("objectives/x.py", "def f():\n    return open('x')", ":2: objectives must not touch open"),
        ("objectives/x.py", "import jax as j\n@j.jit\ndef f(x): return x", ":2: jax.jit outside programs/"),
        (
            "policy/x.py",
            "import fr3e_jax.loop.trainer",
            "policy imports fr3e_jax.loop.trainer; it may import objectives",
        ),
        ("policy/deep/x.py", "from ...programs import mesh", "policy imports fr3e_jax.programs.mesh"),
        ("policy/x.py", "from fr3e_jax import programs", "policy imports fr3e_jax.programs"),
        ("policy/x.py", "def f():\n    from fr3e_jax.cli import main", ":2: policy imports fr3e_jax.cli.main"),
        ("policy/x.py", "from flax import nnx\nf = nnx.jit(print)", "flax.nnx.jit outside programs/"),
        ("policy/x.py", "from functools import partial\nimport jax\n@partial(jax.jit)\ndef f(): 0", "jax.jit outside"),
        ("programs/x.py", "from pathlib import Path", "programs must not touch pathlib.Path"),
        ("rewards/x.py", "import jax.numpy as jnp", "rewards must not touch jax.numpy"),
        ("rewards/x.py", "from fr3e_jax.loop import train", "rewards imports fr3e_jax.loop.train"),
        ("rewards/x.py", "if TYPE_CHECKING:\n    import fr3e_jax.data.task", "rewards imports fr3e_jax.data.task"),
        ("rewards/x.py", "def f():\n    import fr3e_jax.answers.equality as c", "fr3e_jax.answers.equality is behind"),
        ("loop/x.py", "from jax import jit", "jax.jit outside programs/"),
        ("loop/x.py", "from fr3e_jax.cli import main", "loop imports fr3e_jax.cli.main"),
        ("__init__.py", "import jax", "the package root must not touch jax"),
        ("extras/x.py", "", "folder 'extras' is in no layer"),
    ],
)
def test_checker_finds(path, source, complaint):
    found = violations(source, f"{PACKAGE}/{path}")
    assert any(complaint in line for line in found), found


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("objectives/x.py", "import jax\nfrom fr3e_jax.objectives.arrays import AnyArray\ny = jax.nn.softmax(x)"),
        ("policy/x.py", "from fr3e_jax.objectives import token_entropy\nfrom .attention import rotary"),
        ("programs/x.py", "import jax\nfrom fr3e_jax.policy import network\nf = jax.jit(network.apply)"),
        ("rewards/x.py", "import numpy as np\nfrom fr3e_jax.rewards.pool import Pool"),
        ("loop/x.py", "from fr3e_jax import programs\nfrom fr3e_jax.data import tasks\njitter = tasks.jit"),
        ("verbs/x.py", "from fr3e_jax.loop import trainer"),
    ],
)
def test_checker_accepts(path, source):
    assert violations(source, f"{PACKAGE}/{path}") == []


@pytest.mark.parametrize(
    ("sources", "lines"),
    [
        (
            {"p/a.py": "import p.b", "p/b.py": "x = 1\nfrom p import a"},
            {"p/a.py:1 imports p/b.py", "p/b.py:2 imports p/a.py"},
        ),
        (
            {"p/__init__.py": "from .a import f", "p/a.py": "from p.b import g", "p/b.py": "from p import f"},
            {"p/__init__.py:1 imports p/a.py", "p/a.py:1 imports p/b.py", "p/b.py:1 imports p/__init__.py"},
        ),
        ({"p/a.py": "from p import b", "p/b.py": "def f():\n    from p import a"}, set()),
        (
            {"p/a.py": "from p import b", "p/b.py": "if TYPE_CHECKING:\n    from p import a"},
            {"p/a.py:1 imports p/b.py", "p/b.py:2 imports p/a.py"},
        ),
        ({"p/__init__.py": "from p.a import f", "p/a.py": "from p import b", "p/b.py": "import os"}, set()),
    ],
)
def test_circle_is_the_imports_that_close_it(sources, lines):
    assert set(circle(sources)) == lines
