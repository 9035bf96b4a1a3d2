"""``DataLoader``: attributes and batches that programs written for torch rely on."""

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, default_collate  # noqa: E402

import multiproc as mp  # noqa: E402


def channels_last(samples):
    images = torch.stack([torch.arange(48.0).view(3, 4, 4) + sample for sample in samples])
    return images.to(memory_format=torch.channels_last)


class TestSamplers:
    def test_default_samplers_are_torchs(self):
        loader = mp.DataLoader(range(6), 4)
        assert type(loader.sampler) is SequentialSampler
        assert type(loader.batch_sampler) is BatchSampler
        assert list(loader.batch_sampler) == [[0, 1, 2, 3], [4, 5]]
        assert loader.batch_sampler.sampler is loader.sampler is loader.sampler
        assert type(mp.DataLoader(range(6), shuffle=True).sampler) is RandomSampler
        assert mp.DataLoader(range(6), None).batch_sampler is None

    def test_given_samplers_are_returned(self):
        sampler = [3, 1]
        loader = mp.DataLoader(range(6), 2, sampler=sampler)
        assert loader.sampler is sampler
        assert loader.batch_sampler.batch_size == 2
        batches = [[0], [5, 4]]
        loader = mp.DataLoader(range(6), batch_sampler=batches)
        assert loader.batch_sampler is batches
        assert type(loader.sampler) is SequentialSampler
        assert [batch.tolist() for batch in loader] == batches

    def test_samplers_do_not_change_the_order(self):
        loader = mp.DataLoader(range(20), 4, shuffle=True, seed=3)
        other = mp.DataLoader(range(20), 4, shuffle=True, seed=3)
        assert loader.batch_sampler is not None and loader._index_sampler is None
        assert [batch.tolist() for batch in loader] == [batch.tolist() for batch in other]


class TestAttributes:
    @pytest.mark.parametrize(
        "name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]
    )
    def test_fixed_attribute_raises(self, name):
        loader = mp.DataLoader(range(6))
        with pytest.raises(ValueError, match=f"{name} attribute should not be set after DataLoader"):
            setattr(loader, name, None)

    def test_subclass_sets_its_own_attributes(self):
        class Loader(mp.DataLoader):
            def __init__(self, dataset):
                self.before = 1
                super().__init__(dataset)
                self.after = 2

        loader = Loader(range(2))
        assert (loader.before, loader.after) == (1, 2)

    def test_persistent_workers_defaults_to_false(self):
        assert mp.DataLoader(range(6), num_workers=1).persistent_workers is False
        assert mp.DataLoader(range(6), num_workers=1, persistent_workers=True).persistent_workers is True

    def test_class_is_generic(self):
        assert mp.DataLoader[int].__origin__ is mp.DataLoader

    def test_context_name_becomes_a_context(self):
        loader = mp.DataLoader(range(6), num_workers=1)
        assert loader.multiprocessing_context is None
        loader.multiprocessing_context = "spawn"
        assert loader.multiprocessing_context is mp.get_context("spawn")
        assert [batch.item() for batch in loader] == [*range(6)]
        with pytest.raises(ValueError):
            loader.multiprocessing_context = "other"


class TestBatches:
    @pytest.mark.parametrize("samples", [["a", "b"], ("a", "b")])
    def test_strings_keep_their_container(self, samples):
        assert mp.collate(samples) == default_collate(samples)

    @pytest.mark.parametrize(
        "samples",
        [[(1, "a"), (2, "b")], [["a", b"x"], ["b", b"y"]], [{"name": "a"}, {"name": "b"}], [(("a",),)] * 2],
    )
    def test_nested_strings_are_as_in_torch(self, samples):
        assert str(mp.collate(samples)) == str(default_collate(samples))

    @pytest.mark.parametrize("workers", [0, 2])
    def test_channels_last_batch_keeps_strides(self, workers):
        loader = mp.DataLoader(range(4), 2, num_workers=workers, collate_fn=channels_last)
        for number, batch in enumerate(loader):
            assert batch.stride() == (48, 1, 12, 3)
            assert torch.equal(batch, channels_last([2 * number, 2 * number + 1]))
