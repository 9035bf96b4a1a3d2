"""A Python dataset, fed to a torch model by worker processes over shared memory.

    pip install ./mp-python torch numpy
    python examples/python/python_dataset.py

The model reads handwritten digits. Each worker augments its images and writes them into the batch, which
travels to the trainer without a copy. In the second epoch a worker is killed: no batch is lost.
"""

import os
import pathlib
import signal

import multiproc as mp
import torch
from torch import nn

DIGITS = pathlib.Path(__file__).resolve().parents[1] / "hogwild" / "digits.csv"


class Digits:
    """Images of 8×8 pixels, and their digits."""

    def __init__(self, rows, augment):
        table = torch.tensor([[int(n) for n in row.split(",")] for row in rows])
        self.pixels = mp.share(table[:, :64].to(torch.float32).view(-1, 1, 8, 8) / 16)
        self.digits = mp.share(table[:, 64].clone())
        self.augment = augment

    def __len__(self):
        return len(self.digits)

    def __getitem__(self, index):
        image = self.pixels[index]
        if self.augment:
            shift = torch.randint(-1, 2, (2,)).tolist()
            image = torch.roll(image, shift, (1, 2)) + 0.05 * torch.randn(1, 8, 8)
        return image, self.digits[index]


def accuracy(model, loader):
    with torch.no_grad():
        right = sum((model(images).argmax(1) == digits).sum().item() for images, digits in loader)
    return right / len(loader.dataset)


def main():
    torch.set_num_threads(1)  # the other processors are for the workers
    torch.manual_seed(1)
    rows = DIGITS.read_text().split()
    train = mp.DataLoader(Digits(rows[:1500], True), batch_size=50, shuffle=True, seed=7, num_workers=2)
    test = mp.DataLoader(Digits(rows[1500:], False), batch_size=100)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(20):
        batches = 0
        for images, digits in train:
            loss = nn.functional.cross_entropy(model(images), digits)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            batches += 1
            if epoch == 1 and batches == 5:
                os.kill(train.pids()[0], signal.SIGKILL)
        assert batches == 30, f"{batches} of 30 batches arrived"
    print(f"accuracy {accuracy(model, test):.3f} on {len(test.dataset)} digits that were not trained on")
    print("30 batches in each epoch, although a worker was killed")


if __name__ == "__main__":
    main()
