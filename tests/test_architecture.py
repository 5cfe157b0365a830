"""Rules of the source that ruff and import-linter cannot express, and what an import loads.

The import order of the rooms is a contract in pyproject.toml, which import-linter checks.
"""

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "hyperribbon"
MODULES = sorted(SOURCE.rglob("*.py"))
ROOMS = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
EXTRAS = {"mlxtend", "dask", "distributed", "dash", "lightning", "transformers", "tensorboard"}
HEAVY = {"plotly", "zarr", "jinja2", "matplotlib", "sklearn", "pandas", *EXTRAS}
FACTORIES = {"zeros", "ones", "empty", "full", "arange", "eye", "tensor", "linspace", "logspace"}
FACTORIES |= {"rand", "randn", "randint", "randperm", "normal", "Generator"}
FACTORIES |= {"as_tensor", "asarray", "scalar_tensor", "tril_indices", "triu_indices"}


def dotted(node: ast.AST) -> list[str]:
    """Return the parts of a dotted name; calls within it are passed over."""
    match node:
        case ast.Attribute():
            return [*dotted(node.value), node.attr]
        case ast.Call():
            return dotted(node.func)
        case ast.Name():
            return [node.id]
    return [""]


def imported(node: ast.AST) -> list[str]:
    """Return what an import statement imports, as dotted names."""
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom():
            return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def tensor_without_device(node: ast.AST) -> bool:
    """torch.zeros(3) follows torch.set_default_device: name the device of the data, or "cpu"."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    owner, name = node.func.value, node.func.attr
    if not isinstance(owner, ast.Name) or owner.id != "torch" or name not in FACTORIES:
        return False
    has_device = any(keyword.arg in ("device", None) for keyword in node.keywords)
    return not has_device and not (name == "Generator" and node.args)


def private_name_of_torch(node: ast.AST) -> bool:
    """Private names of torch change between versions: core/devices/torch_private.py has them."""
    names = [name.split(".") for name in imported(node)]
    if isinstance(node, ast.Attribute):
        names.append(dotted(node))
    return any(
        parts[0] in ("torch", "functorch", "nn", "F")
        and any(part.startswith("_") and part != "__version__" for part in parts[1:])
        for parts in names
    )


def public_name_from_the_top(node: ast.AST) -> bool:
    """`from hyperribbon import eigsh` hides a room from the import order: name the room."""
    return (
        isinstance(node, ast.ImportFrom)
        and node.module == "hyperribbon"
        and not {alias.name for alias in node.names} <= ROOMS | {"__version__"}
    )


def unpickling(node: ast.AST) -> bool:
    """An untrusted pickle runs code: torch.load needs weights_only=True, numpy no allow_pickle."""
    if not isinstance(node, ast.Call):
        return False
    given = {word.arg: ast.unparse(word.value) for word in node.keywords}
    if dotted(node.func) == ["torch", "load"]:
        return given.get("weights_only") != "True"
    return given.get("allow_pickle", "False") != "False"


EXEMPT = {
    tensor_without_device: {"papers/training/models.py"},  # parameters go where torch.nn puts them
    private_name_of_torch: {"core/devices/torch_private.py"},
    public_name_from_the_top: set(),
    unpickling: set(),
}


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    return {str(path.relative_to(SOURCE)): ast.parse(path.read_text()) for path in MODULES}


def offences(rule, trees: dict[str, ast.Module]) -> Iterator[str]:
    for path, tree in trees.items():
        if path not in EXEMPT[rule]:
            for node in ast.walk(tree):
                if rule(node):
                    yield f"{path}:{node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize("rule", EXEMPT, ids=lambda rule: rule.__name__)
def test_every_file_follows_the_rule(rule, trees):
    found = list(offences(rule, trees))
    assert found == [], rule.__doc__


@pytest.mark.parametrize("rule", EXEMPT, ids=lambda rule: rule.__name__)
def test_exemptions_are_needed(rule, trees):
    for path in EXEMPT[rule]:
        assert any(rule(node) for node in ast.walk(trees[path])), f"{path} needs no exemption"


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        (tensor_without_device, "torch.zeros(3)"),
        (tensor_without_device, "torch.Generator()"),
        (private_name_of_torch, "import torch._C"),
        (private_name_of_torch, "from torch import _C"),
        (private_name_of_torch, "from torch._C import Graph"),
        (private_name_of_torch, "torch.get(1)._version"),
        (private_name_of_torch, "nn.Module._parameters"),
        (public_name_from_the_top, "from hyperribbon import spectra, eigsh"),
        (unpickling, "torch.load(path)"),
        (unpickling, "torch.load(path, weights_only=False)"),
        (unpickling, "np.load(path, allow_pickle=True)"),
    ],
)
def test_a_rule_finds_what_breaks_it(rule, line):
    assert any(rule(node) for node in ast.walk(ast.parse(line)))


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        (tensor_without_device, "torch.zeros(3, device=x.device), torch.Generator('cpu')"),
        (private_name_of_torch, "torch.__version__, self._parameters, F.relu(x)"),
        (public_name_from_the_top, "from hyperribbon import __version__, spectra"),
        (unpickling, "torch.load(path, weights_only=True), np.load(path, allow_pickle=False)"),
    ],
)
def test_a_rule_lets_the_rest_pass(rule, line):
    assert not any(rule(node) for node in ast.walk(ast.parse(line)))


def test_operators_and_spectra_need_no_plots_pages_or_tables():
    code = (
        "import sys, torch, hyperribbon as hr\n"
        "more = hr.subnetworks, hr.noise, hr.training\n"
        "for room in hr.operators, hr.spectra, hr.recording, hr.theory, *more:\n"
        "    [getattr(room, name) for name in room.__all__]\n"
        "data = torch.ones(4, 3), torch.zeros(4, 2)\n"
        "hessian = hr.Hessian(torch.nn.Linear(3, 2), torch.nn.MSELoss(), data)\n"
        "assert hr.eigsh(hessian, k=1).eigenvalues > 0\n"
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert "torch" in loaded
    assert not HEAVY & loaded


def test_a_first_plan_loads_little_and_imports_leave_the_global_random_states_alone():
    code = (
        "import random, sys, numpy, torch, hyperribbon as hr\n"
        "model, data = torch.nn.Linear(3, 2), (torch.ones(4, 3), torch.zeros(4, 2))\n"
        "before = random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state()\n"
        "hessian = hr.Hessian(model, torch.nn.MSELoss(), data)\n"
        "hr.plan(hessian, k=1), hr.Recorder, hr.eigsh(hessian, k=1)\n"
        "print(*sys.modules)\n"
        "hr.inspect, hr.InPCA\n"
        "assert random.getstate() == before[0], 'random'\n"
        "assert numpy.random.get_state()[1].tolist() == before[1], 'numpy'\n"
        "assert torch.equal(torch.get_rng_state(), before[2]), 'torch'"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert not {"torch._dynamo", "scipy", *HEAVY} & set(run.stdout.split())


def test_a_progress_bar_leaves_the_global_random_state_alone():
    code = (
        "import random\n"
        "before = random.getstate()\n"
        "import hyperribbon.core.progress\n"
        "assert random.getstate() == before"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_type_checkers_see_every_public_name():
    import hyperribbon as hr

    tree = ast.parse((SOURCE / "__init__.py").read_text())
    block, _ = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.name for node in block.body for alias in node.names}
    assert seen == set(hr.__all__) - {"__version__"}


def test_every_public_name_exists():
    import hyperribbon as hr

    for name in hr.__all__:
        assert getattr(hr, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = hr.nonsense


def test_names_that_load_on_first_use_are_not_modules():
    packages = [p for p in MODULES if p.name == "__init__.py" and p.parent != SOURCE]
    lazy = [path for path in packages if "lazy_attributes(" in path.read_text()]
    assert lazy
    for path in lazy:
        files = {entry.stem for entry in path.parent.iterdir()}
        package = ".".join(("hyperribbon", *path.parent.relative_to(SOURCE).parts))
        names = set(importlib.import_module(package).__all__)
        assert not names & files, "importing the file would hide the name"
