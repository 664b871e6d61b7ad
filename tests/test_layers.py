"""The layout: a module imports only what lies below it, and some things nobody imports or calls.

cli -> inspector -> store -> analysis -> training -> curriculum, objective, data
    -> model -> program -> errors, files, config, images

The renderer, `scenes`, stands alone: it takes errors, files and random from the package.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import strop

SOURCE = Path(strop.__file__).parent

LAYERS = [  # from the bottom; siblings within a layer do not import each other
    {"errors"},
    {
        "files",
        "config",
        "device",
        "random",
        "progress",
        "pool",
        "optional",
        "recorded",
        "collectives",
    },
    {"images", "metrics", "figures", "statistics", "identity", "legacy", "parquet", "scenes"},
    {"program", "squares", "listing", "agreement"},
    {"model"},
    {"curriculum", "data"},
    {"objective"},  # takes from the curriculum how steps are marked in configs
    {"training", "auto"},
    {"analysis"},
    {"store"},
    {"inspector", "demo"},
    {"cli"},
    {"__init__", "__main__"},
]
SCENES_IMPORTS = {"scenes", "errors", "files", "random"}
HEIGHT = {name: height for height, names in enumerate(LAYERS) for name in names}

FORBIDDEN_IMPORTS = {"torchvision", "pickle", "cPickle", "dill", "webdataset", "joblib", "shelve"}
FORBIDDEN_CALLS = {"eval", "exec", "torch.load", "pickle.loads", "numpy.load"}


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def component(dotted: str) -> str:
    """`strop.model.teacher` is of `model`; `strop` itself is `__init__`."""
    parts = dotted.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    # The package's own __init__ keeps its name, which separates it from a component.
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


def imports(tree: ast.AST, module: str) -> Iterator[str]:
    """Every module imported anywhere in the tree, also inside functions and for type checking."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")[: -node.level]
                base = ".".join([*parents, base] if base else parents)
            # `from strop import model` names the module in the alias.
            yield from (f"{base}.{alias.name}" if base == "strop" else base for alias in node.names)


def violations(tree: ast.AST, module: str) -> list[str]:
    own = component(module)
    found = []
    for imported in imports(tree, module):
        if imported.split(".")[0] != "strop":
            continue
        target = component(imported)
        if target not in HEIGHT:
            target = "__init__"  # `from strop import Program`
        if own == "scenes" and target not in SCENES_IMPORTS:
            found.append(f"{module} imports {imported}, but the renderer stands alone")
        elif target != own and HEIGHT[target] >= HEIGHT[own]:
            # The command line may ask the package for its version and public names.
            if own == "cli" and target == "__init__":
                continue
            found.append(f"{module} imports {imported}, which does not lie below it")
    return found


def dotted_name(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted_name(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else "?"


def forbidden_uses(tree: ast.AST, module: str) -> list[str]:
    found = [
        f"{module} imports {imported}"
        for imported in imports(tree, module)
        if imported.split(".")[0] in FORBIDDEN_IMPORTS
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if dotted_name(node.func) in FORBIDDEN_CALLS:
                found.append(f"{module} calls {dotted_name(node.func)}")
            found += [
                f"{module} passes {keyword.arg}"
                for keyword in node.keywords
                if keyword.arg in {"trust_remote_code", "allow_pickle"}
                and getattr(keyword.value, "value", True)
            ]
        elif isinstance(node, ast.Constant) and node.value == "trust_remote_code":
            found.append(f"{module} names trust_remote_code")
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_imports_only_what_lies_below(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert component(name_of(path)) in HEIGHT, "give the new component its place in LAYERS"
    assert not violations(tree, name_of(path))
    assert not forbidden_uses(tree, name_of(path))


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("strop.program", "from strop.model.teacher import load_teacher"),
        ("strop.model.tokenizer", "import strop.training.step"),
        ("strop.model.tokenizer", "def f():\n    from strop.data import record"),
        ("strop.model.tokenizer", "from strop import analysis"),
        ("strop.model.tokenizer", "from strop import Program"),
        ("strop.data.loader", "from strop.objective import losses"),
        ("strop.curriculum", "from strop.objective import latent"),
        ("strop.training.step", "from strop.analysis.counterfactual import erasure"),
        ("strop.training.step", "from ..analysis import erasure"),
        ("strop.errors", "from strop.files import PathLike"),
        ("strop.scenes.render", "from strop.config import section"),
        ("strop.scenes.describe", "from strop.data.record import Record"),
        ("strop.training.step", "if TYPE_CHECKING:\n    from strop.cli import main"),
    ],
)
def test_a_violation_is_found(module, code):
    assert violations(ast.parse(code), module)


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("strop.model.tokenizer", "from strop.model.teacher import Teacher\nimport strop.config"),
        ("strop.analysis.erasure", "from strop.model.tokenizer import Tokenizer"),
        ("strop.model.tokenizer", "import torch\nfrom .teacher import Teacher"),
        ("strop.cli.info", "import strop"),
        ("strop.__init__", "from strop.analysis.counterfactual import erasure"),
    ],
)
def test_what_is_allowed_is_let_through(module, code):
    assert not violations(ast.parse(code), module)
    assert not forbidden_uses(ast.parse(code), module)


@pytest.mark.parametrize(
    "code",
    [
        "import torchvision.transforms",
        "from torchvision import io",
        "import pickle",
        "import webdataset as wds",
        "eval('1')",
        "import torch\ntorch.load('a.pt')",
        "torch.load('a.pt', weights_only=True)",
        "model.from_pretrained(name, trust_remote_code=True)",
        "options = {'trust_remote_code': True}",
        "numpy.load('a.npy', allow_pickle=True)",
    ],
)
def test_a_forbidden_use_is_found(code):
    assert forbidden_uses(ast.parse(code), "strop.model.tokenizer")


def test_methods_named_like_forbidden_uses_are_let_through():
    assert not forbidden_uses(ast.parse("model.eval()\nProgram.load(path)"), "strop.cli.codes")


def test_every_module_is_checked():
    names = {name_of(path) for path in modules()}
    assert {"strop.__init__", "strop.program", "strop.model", "strop.model.teacher"} <= names
