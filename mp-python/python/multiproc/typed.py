"""Messages with a schema, which programs in Rust and in Python exchange without pickle."""

import dataclasses
import types
import typing

from . import _multiproc
from ._multiproc import TypedQueue, child, register_schema

__all__ = ["TypedQueue", "child", "message", "register_schema", "start_guest"]

_NAMES = {int: "i64", float: "f64", bool: "bool", str: "str", bytes: "list<u8>"}


def message(name):
    """Registers a dataclass as the messages of this name, in Rust ``#[message(name = "...")]``.

    The types of its fields are ``int`` (``i64``), ``float`` (``f64``), ``bool``, ``str``, ``bytes``
    (``list<u8>``), ``list[...]``, ``dict[str, ...]``, ``... | None``, other such classes, and texts as in a
    schema: alone (``"tensor<f32>"``), or as ``Annotated[torch.Tensor, "tensor<f32>"]``. Queues of the schema
    return objects of the class.
    """

    def register(cls):
        if not dataclasses.is_dataclass(cls):
            raise TypeError(f"{cls.__name__} is not a dataclass")
        names = {} if cls.__module__ == "builtins" else vars(__import__("sys").modules[cls.__module__])
        fields = (f"{field.name}:{_text(field.type, names)}" for field in dataclasses.fields(cls))
        cls.__schema__ = register_schema(f"{name}({','.join(fields)})", cls)
        return cls

    return register


def _text(of, names):
    """Returns the text of a field's type."""
    if isinstance(of, str):
        try:
            found = eval(of, names)
        except (SyntaxError, NameError, TypeError):
            return of
        return of if isinstance(found, str) else _text(found, names)
    if of in _NAMES:
        return _NAMES[of]
    if hasattr(of, "__schema__"):
        return of.__schema__
    origin, args = typing.get_origin(of), typing.get_args(of)
    if origin is typing.Annotated and isinstance(args[1], str):
        return args[1]
    if origin is list:
        return f"list<{_text(args[0], names)}>"
    if origin is dict and args[0] is str:
        return f"map<{_text(args[1], names)}>"
    if origin in (typing.Union, types.UnionType) and len(args) == 2 and type(None) in args:
        return f"option<{_text(args[args[0] is type(None)], names)}>"
    name = getattr(of, "__name__", "...")
    raise TypeError(f"{of!r} has no schema type: use Annotated[{name}, 'schema type']")


def start_guest(command, args, schema=None, *, name=None, daemon=False):
    """Starts another program that shares this program's memory, and returns it.

    The program takes ``args`` by ``mp::process::guest`` in Rust, or by ``multiproc.child()`` in Python.
    ``args`` is an object of a class with the decorator ``message``, or a dict with the text of its schema.
    """
    return _multiproc.start_guest([str(word) for word in command], args, schema, name=name, daemon=daemon)
