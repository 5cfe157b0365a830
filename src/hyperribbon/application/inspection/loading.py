"""The user's model from the command line: a factory by name, weights from a file."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.checks import path as check_path
from hyperribbon.core.data import load_data
from hyperribbon.core.states import load_state
from hyperribbon.recording.trajectory import Trajectory

_PREFIXES = ("model.", "module.", "_orig_mod.", "net.")


def load_factory(spec: str) -> Any:
    """Load the factory function that "module:name" or "file.py:name" names.

    The module is looked for in the current folder too.

    Raises:
        ArgumentError: It cannot be imported, or has no such function.
    """
    module_name, colon, name = spec.rpartition(":")
    if not colon or not module_name or not name:
        remedy = "Give for example mymodel:make or mymodel.py:make."
        raise ArgumentError("factory", spec, "it is not of the form module:function", remedy)
    if module_name.endswith(".py") and not Path(module_name).is_file():
        reason = f"the file {module_name} does not exist"
        raise ArgumentError("factory", spec, reason, "Check the path.")
    try:
        module = _import(module_name)
    except Exception as error:  # whatever the user's file raises
        reason = f"importing {module_name} failed ({type(error).__name__}: {error})"
        remedy = "Run it with python first; the current folder is searched too."
        raise ArgumentError("factory", spec, reason, remedy) from error
    factory = getattr(module, name, None)
    if not callable(factory):
        functions = [n for n, value in vars(module).items() if callable(value) and n[0] != "_"]
        remedy = f"It has: {', '.join(functions[:10]) or 'none'}."
        raise ArgumentError("factory", spec, f"{module_name} has no function {name}", remedy)
    return factory


def make_case(factory: Any, data_name: str | None) -> tuple[nn.Module, Any, Any]:
    """Load a case: call a factory and return the model, loss and data to inspect.

    Args:
        factory: Returns (model, loss, data), or (model, loss) when a data set is named.
        data_name: A data set of `load_data` to use instead of the factory's data.

    Raises:
        ArgumentError: It raises, or returns something else.
    """
    try:
        made = factory()
    except Exception as error:
        reason = f"calling it failed ({type(error).__name__}: {error})"
        raise ArgumentError(
            "factory", getattr(factory, "__name__", factory), reason, "Call it in Python first."
        ) from error
    wanted = 2 if data_name else 3
    if not isinstance(made, tuple) or len(made) < wanted or not isinstance(made[0], nn.Module):
        remedy = "Return a torch module, a loss, and (inputs, targets) or a DataLoader."
        raise ArgumentError("factory", made, "it does not return (model, loss, data)", remedy)
    data = made[2] if data_name is None else _named_data(made[0], data_name)
    return made[0], made[1], data


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Load stored weights into a model; nothing in the file is executed.

    Args:
        model: Changed in place.
        path: A .safetensors file, or a .pt file that holds tensors only.

    Raises:
        ArgumentError: The file is missing, damaged, would run code, or is of another model.
    """
    state = matching_state(model, load_state(path), path)
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        reason = f"it does not fit the model ({' '.join(str(error).split())})"
        remedy = "Give a checkpoint of the model the factory makes."
        raise ArgumentError("checkpoint", str(path), reason, remedy) from None


def matching_state(
    model: nn.Module, state: dict[str, torch.Tensor], path: str | Path
) -> dict[str, torch.Tensor]:
    """Return loaded tensors under the model's names, without a wrapper's prefix.

    Raises:
        ArgumentError: No name belongs to the model.
    """
    names = set(model.state_dict())
    for prefix in ("", *_PREFIXES):
        stripped = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
        if names <= set(stripped):
            return {name: tensor for name, tensor in stripped.items() if name in names}
    missing = sorted(names - set(state))
    reason = f"it lacks {len(missing)} of the model's tensors, {missing[:3]}"
    remedy = "Give a checkpoint of the model the factory makes."
    raise ArgumentError("checkpoint", str(path), reason, remedy)


def open_trajectory(given: Trajectory | str | Path) -> Trajectory:
    """Load a recorded training from a Recorder's folder, or from a folder of checkpoints."""
    if isinstance(given, Trajectory):
        return given
    folder = Path(check_path("trajectory", given))
    is_recorded = (folder / "trajectory.json").is_file()
    return Trajectory.open(folder) if is_recorded else Trajectory.from_checkpoints(folder)


def _import(name: str) -> Any:
    if not name.endswith(".py"):
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.insert(0, here)
        return importlib.import_module(name)
    path = Path(name)
    description = importlib.util.spec_from_file_location(path.stem, path)
    assert description is not None
    assert description.loader is not None
    module = importlib.util.module_from_spec(description)
    sys.modules[path.stem] = module
    description.loader.exec_module(module)
    return module


def _named_data(model: nn.Module, name: str) -> Any:
    """Load a named data set as images, or as rows where the model does not take images."""
    data = load_data(name)
    probe = data.inputs[:2].to(next(model.parameters()).device)
    was_training = model.training
    try:
        with torch.no_grad():
            model.eval()(probe)
    except RuntimeError:
        return data.flat()
    finally:
        model.train(was_training)
    return data
