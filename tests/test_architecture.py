"""The import order of the rooms, and the habits every module keeps."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "hyperribbon"
ORDER = {
    "core": 0,
    "operators": 1,
    "theory": 1,
    "recording": 1,
    "manifold": 2,
    "training": 2,
    "simulation": 3,
    "subnetworks": 3,
    "spectra": 4,
    "noise": 5,
    "plots": 6,
    "inspection": 7,
    "experiments": 8,
    "report": 9,
    "explorer": 10,
    "cli": 11,
}
MODULES = sorted(SOURCE.rglob("*.py"))
EXTRAS = {"mlxtend", "dask", "distributed", "dash", "lightning", "transformers", "tensorboard"}


def room_of(path: Path) -> str | None:
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else None


def imports_of(tree: ast.AST) -> list[tuple[int, str]]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            found.append((node.lineno, node.module or ""))
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return found


def test_every_room_has_a_place_in_the_order():
    rooms = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert rooms <= set(ORDER)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_imports_only_from_lower_rooms(path):
    room = room_of(path)
    if room is None:
        return
    for line, name in imports_of(ast.parse(path.read_text())):
        parts = name.split(".")
        if parts[0] != "hyperribbon" or len(parts) < 2 or parts[1] == "__version__":
            continue
        other = parts[1]
        if other == room:
            continue
        assert other in ORDER, f"{path}:{line} imports {name}: import from the room it lives in"
        assert ORDER[other] < ORDER[room], f"{path}:{line}: {room} may not import {other}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_extras_are_imported_only_where_they_are_used(path):
    if room_of(path) == "explorer":
        return
    tree = ast.parse(path.read_text())
    top_level = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    for node in top_level:
        for line, name in imports_of(node):
            assert name.split(".")[0] not in EXTRAS, f"{path}:{line}: import {name} when needed"


def test_no_folder_holds_more_than_fourteen_files():
    folders = {path.parent for path in MODULES if path.parent.parent.name != "experiments"}
    full = {folder.name: len(list(folder.glob("*.py"))) for folder in folders}
    assert {name: count for name, count in full.items() if count > 14} == {}


def test_a_class_name_has_one_meaning():
    every_experiment_has = {"Config", "Result", "TrainingConfig"}
    found: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    several = {name: where for name, where in found.items() if len(where) > 1}
    assert set(several) <= every_experiment_has, several


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_module_is_too_long(path):
    assert len(path.read_text().splitlines()) <= 400


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_global_random_state_is_left_alone(path):
    source = path.read_text()
    forbidden = {"seed"} if "fork_rng" in source else {"seed", "manual_seed"}
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Attribute) or not isinstance(
            node.value, ast.Name | ast.Attribute
        ):
            continue
        owner = ast.unparse(node.value)
        if owner in ("torch", "torch.random", "np.random", "numpy.random", "random"):
            assert node.attr not in forbidden, f"{path}:{node.lineno} uses {owner}.{node.attr}"


@pytest.mark.parametrize(
    "path",
    [path for path in MODULES if room_of(path) not in (None, "cli")],
    ids=lambda path: str(path.relative_to(SOURCE)),
)
def test_library_functions_do_not_print(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "print", f"{path}:{node.lineno} prints"


def test_import_stays_light():
    code = "import sys, hyperribbon; print(' '.join(sorted(m.split('.')[0] for m in sys.modules)))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    heavy = {"matplotlib", "plotly", "sklearn", "pandas", "zarr", *EXTRAS}
    assert not heavy & set(loaded.stdout.split())


def test_imports_leave_the_global_random_states_alone():
    code = (
        "import random, numpy, torch, hyperribbon as hr\n"
        "before = random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state()\n"
        "hr.inspect, hr.InPCA\n"
        "assert random.getstate() == before[0], 'random'\n"
        "assert numpy.random.get_state()[1].tolist() == before[1], 'numpy'\n"
        "assert torch.equal(torch.get_rng_state(), before[2]), 'torch'"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


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
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.name for node in block.body for alias in node.names}
    assert seen == set(hr.__all__) - {"__version__"}


def test_every_public_name_exists():
    import hyperribbon as hr

    for name in hr.__all__:
        assert getattr(hr, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = hr.nonsense


FACTORIES = {"zeros", "ones", "empty", "full", "arange", "eye", "tensor", "linspace", "logspace"}
FACTORIES |= {"rand", "randn", "randint", "randperm", "normal", "Generator"}
FACTORIES |= {"as_tensor", "asarray", "scalar_tensor", "tril_indices", "triu_indices"}
FOLLOWS_THE_DEFAULT = {"training/models.py"}  # parameters go where torch.nn puts them


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_tensors_are_made_on_a_named_device(path):
    if str(path.relative_to(SOURCE)) in FOLLOWS_THE_DEFAULT:
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner, name = node.func.value, node.func.attr
        if not isinstance(owner, ast.Name) or owner.id != "torch" or name not in FACTORIES:
            continue
        named = any(keyword.arg in ("device", None) for keyword in node.keywords)
        assert named or (name == "Generator" and node.args), (
            f"{path}:{node.lineno}: torch.{name} follows torch.set_default_device; "
            'say device="cpu" or where the data are, or use hyperribbon.core.devices.tensors'
        )


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_only_one_module_uses_private_names_of_torch(path):
    if path == SOURCE / "core" / "devices" / "torch_inside.py":
        return
    tree = ast.parse(path.read_text())
    for line, name in imports_of(tree):
        if name.split(".")[0] in ("torch", "functorch"):
            private = any(part.startswith("_") for part in name.split(".")[1:])
            assert not private, f"{path}:{line} imports {name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith(
            ("torch.", "nn.", "F.")
        ):
            parts = ast.unparse(node).split("(")[0].split(".")[1:]
            private = [part for part in parts if part.startswith("_") and part != "__version__"]
            assert not private, f"{path}:{node.lineno} uses {ast.unparse(node)}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_only_one_module_speaks_of_cuda(path):
    if path != SOURCE / "core" / "devices" / "gpus.py":
        assert "torch.cuda" not in path.read_text(), f"{path}: use hyperribbon.core.devices.gpus"


def test_names_that_load_on_first_use_are_no_modules():
    lazy = [p for p in MODULES if p.name == "__init__.py" and "on_first_use(" in p.read_text()]
    assert lazy
    for path in lazy:
        files = {entry.stem for entry in path.parent.iterdir()}
        package = ".".join(("hyperribbon", *path.parent.relative_to(SOURCE).parts))
        names = set(importlib.import_module(package).__all__)
        assert not names & files, "whoever imports the file would hide the name"
