"""The declared layers of the project equal its imports: every module imports from lower layers or
from its own.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
# From the bottom to the top. A package stands for all of its modules, except for those that a
# longer name lists.
LAYERS = (
    "search_spaces.common",
    "search_spaces.ir",
    "search_spaces.ir.text",
    "search_spaces.ir.onnx",
    "search_spaces.domains",
    "search_spaces.parameter_names",
    "search_spaces.choosers",
    "search_spaces.ir.pytorch",
    "search_spaces.space",
    "search_spaces.shared_weights",
    "search_spaces.torch_space",
    "search_spaces.subnetworks",
    "search_spaces.registry",
    "search_spaces.sources",
    "search_spaces.published",
    "search_spaces",
    "search_spaces.testing",
    "predictors",
    "nas.evaluation",
    "nas.benchmarks",
    "nas.search",
    "nas.comparison",
    "nas.report",
    "nas",
    "nas.cli",
    "experiments.runner",
    "experiments",
)
# The only packages of the search spaces that import torch; others import them in functions alone
TORCH_ROOMS = (
    "search_spaces.ir.ops.layers",
    "search_spaces.ir.pytorch",
    "search_spaces.subnetworks",
)
# The door of such a package, through which everybody comes: it imports the rest in functions, too
DOORS = {"search_spaces.subnetworks", "search_spaces.subnetworks.space"}
HEAVY = {"torch", "transformers", "optuna", "matplotlib"}


@cache
def modules() -> dict[str, Path]:
    """Name and file of every module."""
    packages = dict.fromkeys(layer.partition(".")[0] for layer in LAYERS)
    paths = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    return {
        ".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): p
        for p in paths
    }


@cache
def parsed(path: Path) -> ast.Module:
    """A file's syntax tree, which several claims are about."""
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> frozenset[str]:
    """The project's modules that a file imports, also inside of functions and for type checking."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            submodules = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules() else node.module for name in submodules.values()}
    return frozenset(found & modules().keys())


def layer(module: str) -> int:
    """Index of the module's layer, which is the longest name that contains it."""
    names = [name for name in LAYERS if module == name or module.startswith(f"{name}.")]
    return LAYERS.index(max(names, key=len))


def test_imports_go_down() -> None:
    wrong = [
        f"{module} imports {imported}"
        for module, path in modules().items()
        for imported in imports(path)
        if layer(imported) > layer(module)
    ]
    assert not wrong, "lower layers must not import higher ones:\n" + "\n".join(sorted(wrong))


def test_there_are_no_circles() -> None:
    arrows = {module: imports(path) - {module} for module, path in modules().items()}
    while leaves := [module for module, targets in arrows.items() if not targets]:
        for module in leaves:
            del arrows[module]
        arrows = {module: targets - set(leaves) for module, targets in arrows.items()}
    assert not arrows, f"modules that import each other, or that import these: {sorted(arrows)}"


def test_every_import_of_the_project_exists() -> None:
    packages = {layer.partition(".")[0] for layer in LAYERS}
    for path in [*modules().values(), *(ROOT / "tests").rglob("*.py")]:
        for node in ast.walk(parsed(path)):
            if (
                isinstance(node, ast.ImportFrom)
                and node.module
                and node.module.partition(".")[0] in packages
            ):
                assert node.module in modules(), (
                    f"{path.relative_to(ROOT)} imports {node.module}, which is not there"
                )


def test_every_layer_has_modules_and_every_package_a_docstring() -> None:
    for name in LAYERS:
        assert name in modules(), f"{name} is declared as a layer, but is no module"
    for module, path in modules().items():
        if (
            path.name == "__init__.py"
            and module.count(".") <= 1
            and not module.startswith("predictors.")
        ):
            assert ast.get_docstring(parsed(path)), f"{module} has no docstring"


def at_the_top(tree: ast.AST) -> list[ast.Import | ast.ImportFrom]:
    """The imports of a module that run when it is imported."""
    found: list[ast.Import | ast.ImportFrom] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append(node)
        elif isinstance(node, ast.Try | ast.ClassDef) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.dump(node.test)
        ):
            found += at_the_top(node)
    return found


def in_torch_room(module: str) -> bool:
    """True for a module that may import torch at its top."""
    return module.startswith(TORCH_ROOMS) and module not in DOORS


def test_search_spaces_import_no_heavy_package_at_the_top() -> None:
    for module, path in modules().items():
        if module.startswith("search_spaces") and not in_torch_room(module):
            for node in at_the_top(parsed(path)):
                names = (
                    [alias.name for alias in node.names]
                    if isinstance(node, ast.Import)
                    else [node.module or ""]
                )
                heavy = {name.partition(".")[0] for name in names} & HEAVY
                assert not heavy, f"{module} imports {heavy}"
                rooms = [name for name in names if in_torch_room(name)]
                assert not rooms, f"{module} imports {rooms}"
