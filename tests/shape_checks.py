"""Shapes in annotations, checked while the tests run.

A module that says `from typing import Annotated as Float` (or Int, Bool) is loaded with jaxtyping's
name in its place. beartype then checks what its functions return, below the boundary that checks
arguments, and its dataclasses check their fields together. Other annotations are left alone.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader

from beartype import beartype
from jaxtyping import jaxtyped

KINDS = ("Bool", "Float", "Int")
ROOMS = ("core", "manifold", "noise", "spectra", "theory")


def install() -> None:
    """Check the shapes of every module that is loaded from now on."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def shaped(function):
    """Check what a function returns."""
    signature = inspect.signature(function)
    function.__annotations__ = {"return": function.__annotations__["return"]}
    checked = jaxtyped(typechecker=beartype)(function)
    checked.__signature__ = signature  # annotations say which arguments are flags
    return checked


def shaped_fields(cls):
    """Check the fields of a dataclass after it was made."""
    begin, notes = cls.__init__, {}

    @functools.wraps(begin)
    def begun(self, *args, **kwargs):
        begin(self, *args, **kwargs)
        if not notes:
            names = vars(sys.modules[cls.__module__])
            said = {name: text for name, text in cls.__annotations__.items() if _says_shape(text)}
            notes.update({name: eval(text, names) for name, text in said.items()})
        with jaxtyped("context"):
            for name, kind in notes.items():
                value = getattr(self, name)
                if not isinstance(value, kind):
                    shape = getattr(value, "shape", type(value).__name__)
                    raise TypeError(f"{cls.__name__}.{name} is {kind}, not {shape}")

    cls.__init__ = begun
    return cls


def _says_shape(annotation: str) -> bool:
    return any(f"{kind}[" in annotation for kind in KINDS)


class _Finder(PathFinder):
    @classmethod
    def find_spec(cls, fullname, path=None, target=None) -> ModuleSpec | None:
        parts = fullname.split(".")
        if parts[0] != "hyperribbon" or len(parts) < 3 or parts[1] not in ROOMS:
            return None
        spec = super().find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def get_code(self, fullname):
        source = self.get_data(self.path)
        if b"import Annotated as " not in source:
            return super().get_code(fullname)
        tree = _Shaping().visit(ast.parse(source))
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)


class _Shaping(ast.NodeTransformer):
    def visit_Module(self, node: ast.Module) -> ast.Module:
        self.generic_visit(node)
        first = next(
            place
            for place, child in enumerate(node.body)
            if not isinstance(child, ast.Expr) and getattr(child, "module", "") != "__future__"
        )
        node.body[first:first] = ast.parse("import shape_checks as _shape_checks").body
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        (alias, *_) = node.names
        if node.module == "typing" and alias.name == "Annotated" and alias.asname in KINDS:
            return ast.ImportFrom("jaxtyping", [ast.alias(alias.asname)], 0)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        self.generic_visit(node)
        fields = [child for child in node.body if isinstance(child, ast.AnnAssign)]
        if any(_says_shape(ast.unparse(field.annotation)) for field in fields):
            node.decorator_list.insert(0, _decorator("shaped_fields"))
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        if node.returns is not None and _says_shape(ast.unparse(node.returns)):
            node.decorator_list.append(_decorator("shaped"))
        return node


def _decorator(name: str) -> ast.expr:
    return ast.parse(f"_shape_checks.{name}", mode="eval").body
