"""Datapipes of torch: their parts in workers, and the seeds of their shuffling."""

import sys
import weakref

#: Group of torch's processes that all loaders send seeds by. A group has threads and sockets, and torch keeps
#: it until ``destroy_process_group``.
_seed_group = None


def _is(dataset, *names):
    torch = sys.modules.get("torch.utils.data")
    return torch is not None and isinstance(dataset, tuple(getattr(torch, name) for name in names))


def is_iterable_pipe(dataset):
    return _is(dataset, "IterDataPipe")


def ranks():
    """Returns the number of torch's distributed processes, and the rank of this process."""
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return dist.get_world_size(), dist.get_rank()
    return 1, 0


def share_seed(seed):
    """Returns the seed of distributed rank 0, so that all ranks take parts of the same order."""
    global _seed_group
    if ranks()[0] > 1:
        from torch import distributed as dist

        group = _seed_group and _seed_group()
        if group is None:
            group = dist.new_group(backend="gloo")
            _seed_group = weakref.ref(group)
        dist.broadcast(seed, src=0, group=group)
    return seed


def apply_sharding(dataset, parts, part):
    """Sets the ``sharding_filter`` of a datapipe to pass the samples of one part."""
    if _is(dataset, "IterDataPipe", "MapDataPipe"):
        from torch.utils.data import graph_settings

        graph_settings.apply_sharding(dataset, parts, part)


def apply_seed(dataset, seed):
    """Seeds the shuffling of a datapipe. All workers get the same seed, because they yield parts of one
    order."""
    if is_iterable_pipe(dataset):
        import torch
        from torch.utils.data.graph_settings import apply_random_seed

        apply_random_seed(dataset, torch.Generator().manual_seed(seed))
