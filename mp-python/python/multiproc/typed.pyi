from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, TypeVar

from ._multiproc import TypedQueue as TypedQueue
from ._multiproc import child as child
from ._multiproc import register_schema as register_schema

__all__ = ["TypedQueue", "child", "message", "register_schema", "start_guest"]

_T = TypeVar("_T")

def message(name: str) -> Callable[[type[_T]], type[_T]]: ...
def start_guest(
    command: Sequence[str | PathLike[str]],
    args: Any,
    schema: str | type | None = None,
    *,
    name: str | None = None,
    daemon: bool = False,
) -> Any: ...
