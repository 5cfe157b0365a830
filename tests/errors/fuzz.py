"""Random hostile calls of every public function: refused clearly, or answered sensibly.

Every call of the catalogue is repeated with one to three of its arguments replaced: by values that
are wrong anywhere, or by its own good ones damaged (masked, sparse, meta, NaN, negative, of another
shape or type). An outcome is wrong if it is

* an exception other than an ArgumentError, a documented one, or one of the user's own functions;
* a result with NaN or infinity, or a negative variance, count or distance;
* a result where an argument had to be refused: masked entries, tensors without values, no flag;
* another result for the same numbers in another form (a list, a tensor that requires gradients);
* no result within seconds.

Run as a script: python tests/errors/fuzz.py CALLS [SEED] [NAME]
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import os
import random
import re
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent.parent))

from errors.calling import Call
from errors.calls import BAD, CALLS
from hyperribbon.core.checks import ArgumentError, MissingExtraError
from hyperribbon.core.mask import Mask
from hyperribbon.papers.training import DivergenceError
from hyperribbon.spectra import StoppedError

SECONDS = 20
DOCUMENTED = (DivergenceError, StoppedError, MissingExtraError, Warning)
NAN_HAS_A_MEANING = {
    "errors.run_calls._metric": "a record that lacks the metric",
    "hyperribbon.application.inspection.anisotropy.effective_ranks": "a column of zeros",
    "hyperribbon.application.inspection.anisotropy.excess_kurtoses": "a constant column",
}
"""Functions whose results document NaN, and what it says."""
HANDED_ON = {
    "errors.network_calls._times": "an operator is linear: a product with NaN is NaN",
    "errors.run_calls._sweep": "what the function of the user returned",
    "hyperribbon.application.inspection.anisotropy.eigenfunctions": "derivatives of the model",
    "hyperribbon.recording.evaluation.evaluate": "the loss of the model",
    "hyperribbon.recording.evaluation.predict": "outputs of the model",
    "hyperribbon.subnetworks.evaluation.evaluate_states": "losses of the model",
    "hyperribbon.subnetworks.operations.redraw": "the weights that were given, shuffled",
    "hyperribbon.subnetworks.states.state_of": "a copy of the weights that were given",
}
"""Functions whose results are, sample by sample or entry by entry, what the user's own model or
numbers say: where these are not finite, neither are the results."""
NOT_A_NUMBER = re.compile(r"NaN|\binf|huge|returns nan|returns inf|scaled|half precision")
"""Attempts that bring numbers that are not finite, or overflow, into a call."""
NEED_NOT_BE_FINITE = {
    ("Anisotropy", "effective_ranks"): "NaN for eigenvectors of a zero matrix",
    ("Anisotropy", "kurtoses"): "likewise",
    ("Anisotropy", "sample_shares"): "likewise",
    ("Band", "high"): "infinite for an open band",
    ("Band", "low"): "likewise",
    ("Estimate", "freedom"): "infinite for a known error",
    ("LayerFluctuations", "noise_change"): "NaN without a prediction",
    ("Prunable", "stored_values"): "NaN beside the grid of fractions",
    ("Spectrum", "bounds"): "infinite for a bound that was not shown",
    ("VarianceFlatness", "widths"): "infinite where the loss does not rise e-fold",
}
"""Fields that document infinity or NaN."""
NOT_NEGATIVE = re.compile(
    r"_variance$|_variances$|mode_covariance|lyapunov|count$|rank$|ranks$|saliency|bhattacharyya"
    r"|distances$|noise_scale|sharpness|relaxation_steps|edges|strength|regression_loss"
)
"""Functions whose results, or whose diagonals, are never negative."""


class Hang(BaseException):
    """A call that takes too long."""


class OwnError(Exception):
    """What a function of the user raises."""


@dataclasses.dataclass(frozen=True)
class Attempt:
    """A value for one argument.

    Attributes:
        label: What it is.
        value: The value.
        must: "refuse", "same" (the result stays as it is), or "" for either outcome.
    """

    label: str
    value: Any
    must: str = ""


def attempts(good: Any, annotation: Any, rng: random.Random) -> Iterator[Attempt]:
    """Yield damaged forms of a good value."""
    if annotation in ("bool", "bool | None") or isinstance(good, bool):
        must = "refuse" if annotation == "bool" else ""
        for value in ("no", "yes", "", 2, 0.5, [], np.array([True]), torch.ones(1)):
            yield Attempt(f"flag {value!r}", value, must)
    elif isinstance(good, int | float):
        for value in (-good, good + 0.5, -0.0, 2**70, str(good), [good], good * 1j, -1e-300):
            yield Attempt(f"number {value!r}", value)
        yield Attempt("tensor", torch.tensor(good), "same")
        yield Attempt("meta number", torch.tensor(good, device="meta"), "refuse")
        yield Attempt("masked number", np.ma.masked, "refuse")
    elif isinstance(good, np.ndarray):
        yield from _arrays(good, rng)
    elif isinstance(good, torch.Tensor):
        yield from _tensors(good, rng)
    elif isinstance(good, str):
        for value in (good.upper() + "?", good.encode(), [good], "\0", "../" * 9):
            yield Attempt(f"text {value!r}", value)
    elif isinstance(good, list | tuple) and good:
        yield from _sequences(good, rng)
    elif isinstance(good, Mask):
        yield Attempt("mask of nothing", Mask({}))
        yield Attempt("mask of another", Mask({"other": torch.ones(2, dtype=torch.bool)}))
        yield Attempt("other shapes", Mask({n: m.reshape(-1)[:1] for n, m in good.items()}))
        yield Attempt("dict of masks", dict(good))
    elif isinstance(good, Mapping) and good:
        yield from _mappings(good, rng)
    elif isinstance(good, nn.Module):
        yield from _modules(good)
    elif callable(good):
        yield from _functions()


def _arrays(good: np.ndarray, rng: random.Random) -> Iterator[Attempt]:
    if good.size:
        hidden = np.ma.masked_array(good, mask=np.zeros(good.shape, dtype=bool))
        yield Attempt("masked array without masked entries", hidden.copy(), "same")
        hidden.mask.flat[rng.randrange(good.size)] = True
        yield Attempt("masked entries", hidden, "refuse")
    yield Attempt("list", good.tolist(), "same")
    yield Attempt("Fortran order", np.asfortranarray(good), "same")
    locked = good.copy()
    locked.flags.writeable = False
    yield Attempt("read-only", locked, "same")
    if good.dtype.kind == "f":
        yield Attempt("requires grad", torch.tensor(good, requires_grad=True), "same")
        yield Attempt("meta", torch.tensor(good, device="meta"), "refuse")
        yield Attempt("sparse", torch.tensor(good).to_sparse())
        for label, entry in (("NaN", np.nan), ("inf", np.inf), ("huge", 1e200)):
            damaged = good.copy()
            if damaged.size:
                damaged.flat[rng.randrange(good.size)] = entry
            yield Attempt(f"{label} entry", damaged)
        yield Attempt("scaled up", good * 1e160)
        yield Attempt("scaled down", good * 1e-160)
    if good.dtype.kind != "b":
        yield Attempt("negative", -good)
    yield Attempt("transposed", good.T)
    yield Attempt("one more axis", good[None])
    yield Attempt("one fewer", good[..., 0] if good.ndim else good)
    yield Attempt("first row only", good[:1])
    yield Attempt("twice as long", np.concatenate([good, good]) if good.ndim else good)
    yield Attempt("empty", good[:0] if good.ndim else np.zeros(0))
    yield Attempt("objects", good.astype(object))
    yield Attempt("texts", good.astype(str))
    yield Attempt("complex", good * (1 + 1j))
    yield Attempt("dates", np.full(good.shape, np.datetime64("2020-01-01")))
    yield Attempt("records", np.zeros(good.shape, dtype=[("a", float)]))
    yield Attempt("zeros", np.zeros_like(good))
    yield Attempt("equal", np.ones_like(good))


def _tensors(good: torch.Tensor, rng: random.Random) -> Iterator[Attempt]:
    yield Attempt("meta", good.to("meta"), "refuse")
    yield Attempt("sparse", good.to_sparse() if good.ndim else good)
    hidden = np.ma.masked_array(good.detach().numpy(), mask=False)
    if good.numel():
        hidden[np.unravel_index(rng.randrange(good.numel()), hidden.shape)] = np.ma.masked
        yield Attempt("masked entries", hidden, "refuse")
    if good.is_floating_point():
        yield Attempt("requires grad", good.detach().clone().requires_grad_(), "same")
        for label, entry in (("NaN", float("nan")), ("inf", float("inf")), ("huge", 1e30)):
            damaged = good.detach().clone()
            if damaged.numel():
                damaged.view(-1)[rng.randrange(good.numel())] = entry
            yield Attempt(f"{label} entry", damaged)
        yield Attempt("half precision", good.half())
        yield Attempt("scaled", good * 1e30)
    else:
        yield Attempt("float labels", good.float() + 0.25)
        yield Attempt("large labels", good.long() + 10**6)
        yield Attempt("negative labels", -good.long() - 1)
        yield Attempt("bools", good.bool())
    yield Attempt("complex", good.to(torch.complex64))
    yield Attempt("first", good[:1] if good.ndim else good)
    yield Attempt("empty", good[:0] if good.ndim else good)
    yield Attempt("one more axis", good.unsqueeze(0))
    yield Attempt("flat", good.reshape(-1))
    yield Attempt("zeros", torch.zeros_like(good))


def _sequences(good: Any, rng: random.Random) -> Iterator[Attempt]:
    kind = type(good) if type(good) in (list, tuple) else list
    place = rng.randrange(len(good))
    inner = list(attempts(good[place], None, rng))
    inner = rng.sample(inner, min(6, len(inner)))
    wrong = [Attempt(label, BAD[label]) for label in rng.sample(sorted(BAD), 4)]
    for entry in (*inner, *wrong):
        changed = [*good[:place], entry.value, *good[place + 1 :]]
        must = entry.must if entry.must == "refuse" and "number" not in entry.label else ""
        yield Attempt(f"[{place}] {entry.label}", kind(changed), must)
    yield Attempt("one fewer", kind(good[:-1]))
    yield Attempt("twice", kind([*good, *good]))
    yield Attempt("nested", kind([good]))
    yield Attempt("as a dict", dict(enumerate(good)))


def _mappings(good: Mapping[Any, Any], rng: random.Random) -> Iterator[Attempt]:
    name = rng.choice(list(good))
    yield Attempt("one fewer", {k: v for k, v in good.items() if k != name})
    yield Attempt("one more", {**good, "other": good[name]})
    yield Attempt("other names", {f"x{k}": v for k, v in good.items()})
    yield Attempt("numbers for names", dict(enumerate(good.values())))
    for entry in attempts(good[name], None, rng):
        must = entry.must if entry.must == "refuse" else ""
        yield Attempt(f"[{name!r}] {entry.label}", {**good, name: entry.value}, must)


def _modules(good: nn.Module) -> Iterator[Attempt]:
    for label, entry in (("NaN", float("nan")), ("inf", float("inf")), ("huge", 1e20)):
        damaged = copy.deepcopy(good)
        for parameter in list(damaged.parameters())[:1]:
            parameter.data.view(-1)[0] = entry
        yield Attempt(f"{label} weight", damaged)
    yield Attempt("without parameters", nn.Flatten())
    yield Attempt("a class", type(good))
    yield Attempt("without weights (meta)", copy.deepcopy(good).to("meta"))
    yield Attempt("another architecture", nn.Linear(7, 5))
    yield Attempt("frozen", copy.deepcopy(good).requires_grad_(False))
    yield Attempt("half precision", copy.deepcopy(good).half())
    yield Attempt("state dict", good.state_dict())


def _functions() -> Iterator[Attempt]:
    def failing(*_: Any, **__: Any) -> Any:
        raise OwnError

    returned = (None, "x", float("nan"), float("inf"), [], np.ones((2, 0)), torch.tensor(1j))
    for value in returned:
        yield Attempt(f"returns {value!r}", lambda *_, value=value, **__: value)
    yield Attempt("fails", failing)
    yield Attempt("takes nothing", lambda: 1.0)


def arguments_of(call: Call) -> dict[str, tuple[Any, Any]]:
    """Return the good value and the annotation of every argument, unnamed ones too."""
    taken = inspect.signature(call.function).parameters
    found = {}
    for name in {**call.arguments, **({} if call.title or call.others else taken)}:
        parameter = taken.get(name)
        if parameter is not None and parameter.kind in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        ):
            continue
        default = None if parameter is None else parameter.default
        good = call.arguments.get(name, default)
        if good is not inspect.Parameter.empty:
            found[name] = (good, None if parameter is None else parameter.annotation)
    return found


def choose(call: Call, rng: random.Random) -> dict[str, Attempt]:
    """Return hostile values for one to three arguments of a call."""
    every = arguments_of(call)
    number = rng.choices((1, 2, 3), (8, 1, 1))[0]
    chosen = {}
    for name in rng.sample(sorted(every), min(number, len(every))):
        good, annotation = every[name]
        own = list(attempts(good, annotation, rng))
        if own and rng.random() < 0.7:
            chosen[name] = rng.choice(own)
        else:
            label = rng.choice(sorted(BAD))
            chosen[name] = Attempt(label, BAD[label])
    return chosen


def is_finite(result: Any, depth: int = 0) -> bool:
    """Return whether there is no NaN or infinity in a result, however it is nested."""
    if depth > 4:
        return True
    if isinstance(result, float | np.floating):
        return bool(np.isfinite(result))
    if isinstance(result, np.ndarray):
        return result.dtype.kind not in "fc" or bool(np.isfinite(result).all())
    if isinstance(result, torch.Tensor):
        dense = result.layout is torch.strided and not result.is_meta
        return dense and bool(result.isfinite().all())
    if isinstance(result, Mapping):
        return all(is_finite(entry, depth + 1) for entry in result.values())
    if isinstance(result, list | tuple):
        return all(is_finite(entry, depth + 1) for entry in result)
    if dataclasses.is_dataclass(result):
        kind, names = type(result).__name__, [f.name for f in dataclasses.fields(result)]
        known = [name for name in names if (kind, name) not in NEED_NOT_BE_FINITE]
        return all(is_finite(getattr(result, name), depth + 1) for name in known)
    return True


def is_negative(result: Any) -> bool:
    """Return whether a number, an entry, or a diagonal entry of a square matrix is negative."""
    if isinstance(result, torch.Tensor):
        result = result.detach().double().numpy()
    if isinstance(result, Mapping):
        return any(is_negative(entry) for entry in result.values())
    if isinstance(result, tuple | list):
        return any(is_negative(entry) for entry in result)
    if not isinstance(result, float | int | np.ndarray | np.number):
        return False
    found = np.asarray(result, dtype=float)
    if found.ndim == 2 and found.shape[0] == found.shape[1]:
        found = found.diagonal()
    return bool((found < -1e-9 * max(np.abs(found).max(initial=0.0), 1.0)).any())


def is_same(first: Any, second: Any) -> bool:
    """Return whether two results are equal up to rounding."""
    if isinstance(first, torch.Tensor):
        first, second = first.detach().double().numpy(), second.detach().double().numpy()
    if isinstance(first, float | int | np.ndarray | np.number):
        if isinstance(first, np.ndarray) and first.dtype.kind not in "biufc":
            return True
        return bool(np.allclose(first, second, rtol=1e-5, atol=1e-7, equal_nan=True))
    if isinstance(first, Mapping):
        return first.keys() == second.keys() and all(is_same(first[k], second[k]) for k in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(is_same, first, second))
    return True


def is_of_the_user(error: BaseException, chosen: Mapping[str, Attempt]) -> bool:
    """Return whether the user's model, loss or function raised an error."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [f.filename for f in frames if not f.name.startswith("__torch_")]  # on the way only
    last_own = max((i for i, name in enumerate(inside) if "/hyperribbon/" in name), default=-1)
    beyond = inside[last_own + 1 :]  # called by us, directly or not
    if isinstance(error, OwnError) or any("/torch/nn/modules/" in name for name in beyond):
        return True
    if last_own >= 0 and any("errors/fuzz.py" in name for name in beyond):
        return True
    given = {attempt.label.rpartition("] ")[2] for attempt in chosen.values()}
    if isinstance(error, TypeError):  # a call of a function of the user that leaves no frame
        takes = re.search(r"(<lambda>|len)\(\) takes", str(error))
        length = "has no len" in str(error) or "len() of" in str(error)
        return bool(
            (takes and given & {"function", "takes nothing"}) or (length and "function" in given)
        )
    answered = "should_stop" in chosen and "should_stop" in str(frames[-1].line)
    return answered and "truth value of an" in str(error)


def _refusal_is_clear(call: Call, error: ArgumentError) -> bool:
    words = set(re.findall(r"\w+", error.argument))
    return bool(error.reason and error.remedy and words & (call.names | {"likelihood"}))


def outcome(call: Call, chosen: dict[str, Attempt], good: Callable[[], Any]) -> str:
    """Make a call and return what is wrong with its outcome, "" if nothing is."""

    def late(*_: Any) -> None:
        raise Hang

    changed = {name: attempt.value for name, attempt in chosen.items()}
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            result = call(**changed)
    except ArgumentError as error:
        return "" if _refusal_is_clear(call, error) else f"unclear: {error}"
    except DOCUMENTED:
        return ""
    except Hang:
        return "hang"
    except BaseException as error:
        if is_of_the_user(error, chosen):
            return ""
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if "/hyperribbon/" in frame.filename]
        place = f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "outside"
        return f"raw: {type(error).__name__} at {place}: {str(error)[:120]}"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    try:
        return judge(call, chosen, result, good)
    except Exception as error:
        return f"raw: {type(error).__name__} from the result: {str(error)[:120]}"


def judge(call: Call, chosen: dict[str, Attempt], result: Any, good: Callable[[], Any]) -> str:
    """Return what is wrong with a result."""
    musts = {attempt.must for attempt in chosen.values()}
    if "refuse" in musts:
        return "accepted"
    brought = any(NOT_A_NUMBER.search(attempt.label) for attempt in chosen.values())
    allowed = call.name in NAN_HAS_A_MEANING or (brought and call.name in HANDED_ON)
    if not allowed and not is_finite(result):
        return f"not finite: {str(result)[:120]}"
    if NOT_NEGATIVE.search(call.name) and is_negative(result):
        return f"negative: {str(result)[:120]}"
    if musts == {"same"} and not is_same(good(), result) and is_same(good(), call()):
        return f"another result: {str(result)[:120]}"
    return ""


def fuzz(calls: int, seed: int, only: str = "", names: Any = None) -> tuple[int, Counter[str]]:
    """Make hostile calls; return how many, and what went wrong how often."""
    rng, wrong, results = random.Random(seed), Counter[str](), {}
    every = sorted(n for n in (names or CALLS) if only in n)
    for index in range(calls):
        name = every[index % len(every)]
        call = CALLS[name]
        chosen = choose(call, rng)

        def good(name: str = name, call: Call = call) -> Any:
            if name not in results:
                results[name] = call()
            return results[name]

        problem = outcome(call, chosen, good)
        if problem:
            values = ", ".join(f"{argument}={a.label}" for argument, a in chosen.items())
            wrong[f"{name}({values}): {problem}"] += 1
    return calls, wrong


@contextlib.contextmanager
def quiet_disk() -> Iterator[None]:
    """Work in an empty folder, without waiting for the disk."""
    sync, os.fsync = os.fsync, lambda handle: None
    home = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(home)
            os.fsync = sync


if __name__ == "__main__":
    torch.set_num_threads(1)
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with quiet_disk():
        done, failures = fuzz(int(sys.argv[1]), seed, *sys.argv[3:4])
    for what, times in sorted(failures.items()):
        print(f"{times} × {what}")
    print(f"{done} calls of {len(CALLS)} functions, {sum(failures.values())} wrong")
