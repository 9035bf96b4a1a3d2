"""Strides of arrays in messages."""

import pytest

import multiproc as mp

np = pytest.importorskip("numpy")


def sent(value):
    queue = mp.Queue()
    queue.put(value)
    return queue.get()


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (0, 2, 1)])
@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 3, 4), (40, 50, 60)])
def test_dense_array_keeps_its_strides(axes, shape):
    array = np.arange(np.prod(shape)).reshape(shape).transpose(axes)
    got = sent(array)
    assert (got == array).all() and got.flags.f_contiguous == array.flags.f_contiguous
    lengths = [(n, stride) for n, stride in zip(got.shape, got.strides) if n > 1]
    assert lengths == [(n, stride) for n, stride in zip(array.shape, array.strides) if n > 1]


@pytest.mark.parametrize("cut", [np.s_[:, ::2], np.s_[::-1], np.s_[1:], np.s_[1:1]])
def test_array_with_gaps_becomes_row_major(cut):
    array = np.arange(12.0).reshape(3, 4).T[cut]
    got = sent(array)
    assert (got == array).all() and got.flags.c_contiguous


def test_tensor_keeps_its_memory_format():
    torch = pytest.importorskip("torch")
    images = torch.arange(96.0).view(2, 3, 4, 4).to(memory_format=torch.channels_last)
    got = sent(images)
    assert got.stride() == (48, 1, 12, 3) and torch.equal(got, images)
    assert sent(torch.arange(6).view(2, 3).t()).stride() == (1, 3)
