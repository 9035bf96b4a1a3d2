"""Trains a model of torch on digits that worker processes draw in Rust.

Build the extension first: ``pip install .`` in this folder, or ``maturin develop --release``.
"""

import argparse
import statistics
import time

import torch

import digits


class Arena:
    """Addresses at which the shared memory of the workers is mapped."""

    def __init__(self):
        self.ranges = []

    def read(self):
        with open("/proc/self/maps") as maps:
            shared = [line.split()[0].split("-") for line in maps if "/memfd:mp" in line]
        self.ranges = [(int(low, 16), int(high, 16)) for low, high in shared]

    def contains(self, tensor):
        address = tensor.data_ptr()
        return any(low <= address < high for low, high in self.ranges)

    def copies(self, tensors):
        """Returns the number of tensors whose elements are not where a worker has written them."""
        if not all(map(self.contains, tensors)):
            self.read()
        return sum(not self.contains(tensor) for tensor in tensors)


def accuracy(model, loader):
    right = total = 0
    with torch.no_grad():
        for images, classes in loader:
            right += (model(images).argmax(1) == classes).sum().item()
            total += len(classes)
    return right / total


def overhead():
    """Returns the time of a batch besides the work of its worker, in microseconds."""
    count = 32
    loader = digits.Images(8 * count, batch_size=8, num_workers=1, prefetch_factor=count)
    batches, times = iter(loader), []
    next(batches)
    time.sleep(1)  # The worker makes the others.
    for _ in range(count - 1):
        begin = time.perf_counter()
        next(batches)
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e6


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()

    torch.manual_seed(3)
    held_out = options.images // 5
    training = digits.Images(
        options.images - held_out, held_out, batch_size=64, shuffle=True, seed=17, num_workers=options.workers
    )
    test = digits.Images(held_out, batch_size=64)
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(28 * 28, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    arena, most = Arena(), 0
    for epoch in range(options.epochs):
        training.set_epoch(epoch)
        for images, classes in training:
            most = max(most, arena.copies((images, classes)))
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), classes)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {accuracy(model, test):.3f}")

    print(training.metrics()["text"])
    print(f"copies a batch: {most}")
    print(f"a batch besides the work: {overhead():.0f} µs")


if __name__ == "__main__":
    main()
