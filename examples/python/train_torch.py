"""Trains a model of torch on images of digits that worker processes make in Rust, in ``rust_dataset``.

    pip install torch ./mp-python ./examples/python/rust_dataset
    python examples/python/train_torch.py

The images are generated: each is drawn from a font of ten digits, with its own size, position, slant,
brightness and noise. The accuracy is that of images which were not trained on.

Copies are counted, not assumed: a tensor counts as a copy if its elements are outside the shared memory that
the workers write, by the mappings of this process.
"""

import argparse

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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()

    torch.set_num_threads(1)  # the other processors are for the workers
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
        print(f"epoch {epoch}: loss {loss.item():.3f}")

    print(training.metrics()["text"])
    print(f"accuracy {accuracy(model, test):.3f} on {held_out} generated images that were not trained on")
    print(f"copies a batch: {most}")


if __name__ == "__main__":
    main()
