"""Parameters of the functions, compared with CPython and torch: names, order and defaults."""

import inspect
import multiprocessing
import multiprocessing.connection
import multiprocessing.context
import multiprocessing.managers
import multiprocessing.pool
import multiprocessing.process
import multiprocessing.queues
import multiprocessing.shared_memory
import multiprocessing.sharedctypes
import multiprocessing.synchronize

import pytest

import multiproc
from multiproc import (
    connection, context, managers, pool, process, queues, shared_memory, sharedctypes, synchronize,
)

CLASSES = [
    (multiprocessing.connection.Connection, connection.Connection),
    (multiprocessing.connection.Listener, connection.Listener),
    (multiprocessing.context.BaseContext, context.Context),
    (multiprocessing.managers.BaseManager, managers.BaseManager),
    (multiprocessing.managers.SharedMemoryManager, managers.SharedMemoryManager),
    (multiprocessing.managers.SyncManager, managers.SyncManager),
    (multiprocessing.pool.ApplyResult, pool.AsyncResult),
    (multiprocessing.pool.IMapIterator, pool.IMapIterator),
    (multiprocessing.pool.Pool, pool.Pool),
    (multiprocessing.process.BaseProcess, process.Process),
    (multiprocessing.queues.JoinableQueue, queues.JoinableQueue),
    (multiprocessing.queues.Queue, queues.Queue),
    (multiprocessing.queues.SimpleQueue, queues.SimpleQueue),
    (multiprocessing.shared_memory.ShareableList, shared_memory.ShareableList),
    (multiprocessing.shared_memory.SharedMemory, shared_memory.SharedMemory),
    (multiprocessing.synchronize.Barrier, synchronize.Barrier),
    (multiprocessing.synchronize.BoundedSemaphore, synchronize.BoundedSemaphore),
    (multiprocessing.synchronize.Condition, synchronize.Condition),
    (multiprocessing.synchronize.Event, synchronize.Event),
    (multiprocessing.synchronize.Lock, synchronize.Lock),
    (multiprocessing.synchronize.RLock, synchronize.RLock),
    (multiprocessing.synchronize.Semaphore, synchronize.Semaphore),
]
MODULES = [
    (multiprocessing, multiproc),
    (multiprocessing.connection, connection),
    (multiprocessing.sharedctypes, sharedctypes),
]
# The library creates the first three. The constructor of the last class takes any arguments.
WITHOUT_CONSTRUCTOR = {"ApplyResult", "Connection", "IMapIterator", "SharedMemoryManager"}


def functions():
    for theirs, ours in CLASSES:
        name = theirs.__name__
        if name not in WITHOUT_CONSTRUCTOR:
            yield pytest.param(theirs, ours, id=name)
        for method, function in inspect.getmembers(theirs, inspect.isroutine):
            # `Pool.Process` is for CPython's subclasses.
            if not method.startswith("_") and (name, method) != ("Pool", "Process"):
                yield pytest.param(function, getattr(ours, method), id=f"{name}.{method}")
    for theirs, ours in MODULES:
        for name in theirs.__all__:
            if inspect.isroutine(getattr(theirs, name)):
                yield pytest.param(
                    getattr(theirs, name), getattr(ours, name), id=f"{theirs.__name__}.{name}"
                )


def parameters(function):
    found = list(inspect.signature(function).parameters.values())
    if found and found[0].name in ("self", "cls"):
        del found[0]
    return found


def missing(theirs, ours):
    """Returns the parameters of one function that the other lacks or has at another position."""
    positional = [p for p in ours if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    others = {p.name: p for p in ours}
    for number, parameter in enumerate(theirs):
        if parameter.kind == parameter.POSITIONAL_OR_KEYWORD:
            found = positional[number] if number < len(positional) else None
        else:
            found = others.get(parameter.name)
        # A parameter that is required there may have a default here.
        if (
            found is None
            or found.name != parameter.name
            or parameter.default not in (parameter.empty, found.default)
        ):
            yield f"{parameter} is {found}"


@pytest.mark.parametrize(["theirs", "ours"], list(functions()))
def test_parameters_are_those_of_cpython(theirs, ours):
    assert list(missing(parameters(theirs), parameters(ours))) == []


def test_acquire_has_the_parameters_of_cpython():
    # In CPython, `acquire` is an attribute of each lock.
    theirs = multiprocessing.Lock().acquire
    assert list(missing(parameters(theirs), parameters(multiproc.Lock().acquire))) == []


# torch's, as of 2.15. It need not be installed.
def spawn(fn, args=(), nprocs=1, join=True, daemon=False, start_method="spawn"): ...
def start_processes(fn, args=(), nprocs=1, join=True, daemon=False, start_method="spawn"): ...
def ProcessException(msg, error_index, error_pid): ...
def ProcessExitedException(msg, error_index, error_pid, exit_code, signal_name=None): ...
def set_sharing_strategy(new_strategy): ...


@pytest.mark.parametrize(
    "theirs", [spawn, start_processes, ProcessException, ProcessExitedException, set_sharing_strategy]
)
def test_parameters_are_those_of_torch(theirs):
    ours = getattr(multiproc, theirs.__name__)
    assert list(missing(parameters(theirs), parameters(ours))) == []


def test_loader_has_the_parameters_of_torch():
    data = pytest.importorskip("torch.utils.data")
    theirs, ours = parameters(data.DataLoader), parameters(multiproc.DataLoader)
    # By default, workers persist here, with new copies of the dataset.
    theirs = [p.replace(default=None) if p.name == "persistent_workers" else p for p in theirs]
    assert list(missing(theirs, ours)) == []


def test_loader_takes_the_keyword_of_torchdata():
    loader = multiproc.DataLoader([1, 2], snapshot_every_n_steps=2, batch_size=None)
    assert list(loader) == [1, 2]
