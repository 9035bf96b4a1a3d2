"""Names of shared objects."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    _T = TypeVar("_T")


def named(obj: "_T", name: str) -> "_T":
    """Names a shared object for all processes, and returns it: ``jobs = named(Queue(64), "jobs")``.

    The command ``mp``, reports of waits, and ``repr`` show the name. It is cut at 32 bytes, and a later name
    replaces it. Both ends of a pipe have one name. ``Value`` and ``Array`` name their locks. A ``Condition``
    also names its lock, if that has no name.
    """
    give_name = getattr(type(obj), "_give_name", None)
    if give_name is None:
        raise TypeError(
            f"{type(obj).__name__} can't be named, only multiproc's queues, connections, locks, semaphores, "
            "conditions, events, barriers, and Value and Array with a lock. Process and Pool take name="
        )
    give_name(obj, name)
    return obj
