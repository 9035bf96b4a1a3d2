"""torch's DataLoader in the rows of the benchmark `data`.

Arguments: the row, the variant, batches of a round, the images' folder, the decoder's library. Each line of the standard input asks for
a round, whose figure and check are printed. The loader and its two workers live from round to round, unless their start is measured.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
import time
import warnings

import numpy
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

ROW, VARIANT, BATCHES, FOLDER, DECODER = sys.argv[1:]
BATCHES = int(BATCHES)
HOW, PREFETCH = VARIANT.split(" ")
SIDE = 224
# What is left for the caller is next to nothing; its threads would only disturb the workers.
torch.set_num_threads(1)
# Workers that sleep, or that are only looked at: more than processors are meant.
warnings.filterwarnings("ignore", message="This DataLoader will create")


def in_place(shape, dtype):
    """A tensor in the shared memory in which it is sent: as `default_collate` makes it, in a worker."""
    elem = torch.empty(0, dtype=dtype)
    size = 1
    for n in shape:
        size *= n
    storage = elem._typed_storage()._new_shared(size, device=elem.device)
    return elem.new(storage).resize_(shape)


def itself(batch):
    return batch


class Filled(Dataset):
    """Images that are filled with their number."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.full((3, SIDE, SIDE), float(index))


class FilledInPlace(Filled):
    def __getitems__(self, indices):
        batch = in_place((len(indices), 3, SIDE, SIDE), torch.float32)
        for row, index in zip(batch, indices):
            row.fill_(float(index))
        return batch


class Numbers(Dataset):
    """The numbers themselves."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return index


class NumbersAtOnce(Numbers):
    def __getitems__(self, indices):
        return torch.tensor(indices)


class Slow(Numbers):
    """Two milliseconds each."""

    def __getitem__(self, index):
        time.sleep(0.002)
        return index


class Uneven(Numbers):
    """Two milliseconds each, and one in 20 takes 20 times as long: another one of each 20, so that no worker has all of them."""

    def __getitem__(self, index):
        time.sleep(0.04 if index % 20 == index // 20 * 7 % 20 else 0.002)
        return index


def path(index):
    return f"train/n01440764/{index:06}.jpg"


class Texts(Numbers):
    """The paths of a list."""

    def __init__(self, count):
        super().__init__(count)
        self.paths = [path(index) for index in range(count)]

    def __getitem__(self, index):
        return self.paths[index]


class TextsAtOnce(Texts):
    """A batch as all bytes, and where each path begins."""

    def __getitems__(self, indices):
        texts = [self.paths[index].encode() for index in indices]
        offsets = torch.zeros(len(texts) + 1, dtype=torch.int64)
        torch.cumsum(torch.tensor([len(text) for text in texts]), 0, out=offsets[1:])
        return torch.frombuffer(bytearray(b"".join(texts)), dtype=torch.uint8), offsets


class Paths(Dataset):
    """The numbers of the paths of a list."""

    def __init__(self, paths, count):
        self.paths, self.count = paths, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return int(self.paths[index % len(self.paths)][16:22])


class Files(Dataset):
    """The middle of image files."""

    def __init__(self, count):
        self.paths = sorted(os.path.join(FOLDER, name) for name in os.listdir(FOLDER) if name.endswith(".jpg"))
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.decode(self.paths[index % len(self.paths)])

    def decode(self, path):
        """By PIL."""
        from PIL import Image

        image = Image.open(path)
        left, top = (image.width - SIDE) // 2, (image.height - SIDE) // 2
        return torch.from_numpy(numpy.array(image.crop((left, top, left + SIDE, top + SIDE))))


class FilesByTorchvision(Files):
    def decode(self, path):
        from torchvision.io import decode_image, read_file

        image = decode_image(read_file(path))
        top, left = (image.shape[1] - SIDE) // 2, (image.shape[2] - SIDE) // 2
        return image[:, top : top + SIDE, left : left + SIDE]


class FilesByOurs(Files):
    """By the decoder of the Rust rows, into the row of the batch."""

    library = ctypes.CDLL(DECODER)
    library.mp_bench_decode.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t]

    def __getitems__(self, indices):
        batch = in_place((len(indices), SIDE, SIDE, 3), torch.uint8)
        for row, index in zip(batch, indices):
            path = self.paths[index % len(self.paths)].encode()
            if self.library.mp_bench_decode(path, row.data_ptr(), row.numel()) != 0:
                raise RuntimeError(f"{path} can't be decoded")
        return batch


def loader(dataset, batch_size, tuned=False, workers=2, **others):
    return DataLoader(
        dataset,
        batch_size=batch_size,
        num_workers=workers,
        persistent_workers=True,
        prefetch_factor=int(PREFETCH),
        collate_fn=itself if tuned else None,
        **others,
    )


def epoch(batches, check):
    """Batches a second, and the check of all."""
    start = time.perf_counter()
    total, count = 0, 0
    for number, batch in enumerate(batches):
        total += (number + 1) * check(batch)
        count += 1
    took = time.perf_counter() - start
    assert count == BATCHES, count
    return count / took, total


def ends(batch):
    return int(batch[0, 0, 0, 0]) + int(batch[-1, -1, -1, -1])


def pixels(batch):
    return int(batch[0].sum()) + int(batch[-1].sum())


def numbers(batch):
    return int(batch.sum())


def texts(batch):
    return sum(batch[0].encode()) + sum(batch[-1].encode())


def bytes_and_offsets(batch):
    values, offsets = batch
    return int(values[: offsets[1]].sum()) + int(values[offsets[-2] :].sum())


def pss():
    """The bytes of this process and its workers; of memory that several have, each counts its part."""
    total = 0
    for pid in [os.getpid()] + [child.pid for child in multiprocessing.active_children()]:
        with open(f"/proc/{pid}/smaps_rollup") as lines:
            total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total


def of_a_list(paths, count):
    """After a shuffled epoch: what the numbers of the paths add up to, and `pss`."""
    batches = loader(Paths(paths, count), 4096, workers=8, shuffle=True)
    total = sum(int(batch.sum()) for batch in batches)
    return total, pss()


def rounds():
    """A function that makes a round."""
    tuned = HOW not in ("default", "PIL", "torchvision", "list")
    if ROW == "transfer":
        batches = loader((FilledInPlace if tuned else Filled)(64 * BATCHES), 64, tuned)
        return lambda: epoch(batches, ends)
    if ROW == "decode":
        kind = {"PIL": Files, "torchvision": FilesByTorchvision, "same": FilesByOurs}[HOW]
        batches = loader(kind(16 * BATCHES), 16, tuned)
        return lambda: epoch(batches, pixels)
    if ROW in ("numbers_256", "number"):
        size = 256 if ROW == "numbers_256" else 1
        batches = loader((NumbersAtOnce if tuned else Numbers)(size * BATCHES), size, tuned)
        return lambda: epoch(batches, numbers)
    if ROW == "strings":
        batches = loader((TextsAtOnce if tuned else Texts)(256 * BATCHES), 256, tuned)
        return lambda: epoch(batches, bytes_and_offsets if tuned else texts)
    if ROW == "uneven":
        batches = loader(Uneven(BATCHES), 1, workers=4)
        return lambda: epoch(batches, numbers)
    if ROW == "uneven_any_order":
        batches = loader(Uneven(BATCHES), 1, workers=4, in_order=False)

        def any_order():
            # Which batch it is says the number in it.
            rate, _ = epoch(batches, lambda batch: seen.append(int(batch[0])) or 0)
            check = sum((number + 1) * number for number in seen)
            seen.clear()
            return rate, check

        seen = []
        return any_order
    if ROW in ("first", "first_38m"):

        def first():
            start = time.perf_counter()
            if ROW == "first":
                batches = loader(Numbers(1000), 4)
            else:
                batches = loader((FilledInPlace if tuned else Filled)(64 * BATCHES), 64, tuned)
            batch = next(iter(batches))
            took = time.perf_counter() - start
            return took, int(batch.sum()) if ROW == "first" else ends(batch)

        return first
    if ROW == "paths":

        def of_a_million():
            _, before = of_a_list([path(0)], BATCHES)
            check, after = of_a_list([path(index) for index in range(BATCHES)], BATCHES)
            return after - before, check

        return of_a_million
    if ROW == "memory":
        batches = loader(Filled(64 * BATCHES), 64)

        def memory():
            _, check = epoch(batches, ends)
            return batches._iterator._workers[0].pid, check

        return memory
    if ROW == "kill":

        def kill():
            batches = iter(loader(Slow(5 * BATCHES), 5))
            last, longest, total = time.perf_counter(), 0.0, 0
            for number, batch in enumerate(batches):
                now = time.perf_counter()
                longest, last = max(longest, now - last) if number > 10 else 0.0, now
                total += (number + 1) * int(batch.sum())
                if number == 20:
                    os.kill(batches._workers[0].pid, signal.SIGKILL)
            return longest, total

        return kill
    sys.exit(3)


def main():
    make = rounds()
    print("versions", f"torch {torch.__version__}", f"Python {sys.version.split()[0]}", sep="\t", flush=True)
    for _ in sys.stdin:
        try:
            figure, check = make()
        except RuntimeError as error:
            print("failed", str(error).replace("\n", " "), sep="\t", flush=True)
        else:
            print("round", figure, check, sep="\t", flush=True)


main()
