"""Sources of an epoch's batches: this process, workers, and a thread that pins memory."""

import itertools
import queue
import threading
import time

from ._loader_errors import _Skip, _failed, _late, _lost
from ._loader_worker import BATCH, END, SavedRandomness, Worker, mix


class _Inline:
    """Batches made in this process."""

    def __init__(self, loader, progress):
        self.worker = Worker(loader._inline_setup(), 0, inline=True)
        self.worker.shard()
        self.progress = progress.copy()
        self.loader = loader
        self.order = None if loader._iterable else loader._order(self.progress)
        if loader._iterable:
            lane = self.progress.lanes[0]
            self.origin = lane[0], lane[2]
            self.at, self.ended = lane[0], lane[1]

    def next(self):
        if self.order is None:
            return self._next_of_stream()
        number, indices = next(self.order)
        try:
            with SavedRandomness():
                seed = mix(self.progress.seed, self.progress.epoch, number)
                _, batch, skipped, _ = self.worker.make(number, seed, indices)
        except Exception as error:
            return number, None, error
        self.loader._skip(skipped)
        return number, batch, _Skip() if skipped and batch is None else None

    def _next_of_stream(self):
        if self.ended:
            raise StopIteration
        seed = self.loader._stream_seed(self.progress)
        number, self.at = self.at, self.at + 1
        try:
            with SavedRandomness():
                reply = self.worker.stream(0, number, number, seed, self.origin, (0,))
        except Exception as error:
            return (0, False, None, 0), None, error
        if reply[0] == END:
            self.ended = True
            return (0, True, None, 0), None, _Skip()
        return (0, False, reply[3], 0), reply[1], None

    def close(self):
        self.worker.iterations.clear()


def _preparing(loader):
    """Returns ``True`` if workers make their copies of the dataset before they get batches. This has no time
    limit, and includes workers that get no batch."""
    return bool(loader.batch_timeout or loader.worker_init_fn)


class _Workers:
    """Batches of a dataset with indices, made by workers."""

    def __init__(self, loader, progress, team, calls):
        self.loader, self.team, self.calls = loader, team, calls
        self.progress = progress.copy()
        self.order = loader._order(self.progress)
        self.tasks = self._tasks(loader.in_order, _preparing(loader) and loader.num_workers)
        self.pending = {}
        self.window = loader.num_workers * max(loader.prefetch_factor, 1)
        self.exhausted = None
        self._fill()

    def _tasks(self, in_order, prepare=0):
        loader = self.loader
        timeout = loader.batch_timeout or None
        return self.calls[0].tasks(
            retries=loader.retries, timeout=timeout, in_order=in_order, prepare=prepare
        )

    def _fill(self):
        while self.exhausted is None and len(self.pending) < self.window:
            try:
                number, indices = next(self.order)
            except StopIteration:
                # A new exception, whose traceback does not refer to this frame.
                self.exhausted = StopIteration()
                return
            except Exception as error:
                # An error of the sampler is raised after the batches that precede it.
                self.exhausted = error
                return
            self.pending[self.tasks.push((number, self._seed(number), indices))] = number, indices

    def _seed(self, number):
        return mix(self.progress.seed, self.progress.epoch, number)

    def next(self):
        self._fill()
        if not self.pending:
            if not isinstance(self.exhausted, StopIteration):
                error, self.exhausted = self.exhausted, StopIteration()
                raise error
            raise StopIteration
        result = self.tasks.next(self.loader.timeout or None)
        if result is None:
            raise self._late()
        ticket, reply, failure = result
        number, indices = self.pending.pop(ticket)
        self._fill()
        return number, *self._outcome(number, indices, reply, failure)

    def _outcome(self, number, indices, reply, failure):
        loader = self.loader
        gone = []
        while failure is not None:
            position = (failure[4] or 0) - 1
            several = loader._auto_collation and not loader._opaque
            if loader.on_error != "skip" or failure[0] == "failed" or position < 0 or not several:
                if loader.on_error == "skip" and failure[0] != "failed":
                    lost = indices if loader._auto_collation else [indices]
                    loader._skip([(index, failure[5]) for index in lost])
                    return None, _Skip()
                return None, _lost(failure, number, indices, loader, self.team)
            # The batch is made again without the sample that kills its worker, or takes too long.
            gone.append((indices[position], failure[5]))
            indices = [index for i, index in enumerate(indices) if i != position]
            if not indices:
                loader._skip(gone)
                return None, _Skip()
            again = self._tasks(True)
            again.push((number, self._seed(number), indices))
            _, reply, failure = again.next()
        loader._skip(gone)
        if reply[0] == BATCH:
            loader._skip(reply[2])
            return reply[1], _Skip() if reply[2] and reply[1] is None else None
        return None, _failed(reply, number, indices)

    def _late(self):
        waited = min(self.pending) if self.loader.in_order else None
        running = [task for task in self.tasks.running() if waited is None or task[0] == waited]
        return _late(self.loader, self.team, running, self.pending)

    def close(self):
        self.order = self.tasks = self.calls = None


class _Streams:
    """Batches of a dataset that is iterated, by a worker for each part."""

    runs = itertools.count()

    def __init__(self, loader, progress, team, calls):
        self.loader, self.team = loader, team
        self.progress = progress.copy()
        self.run = next(self.runs)
        loader._runs.add(self.run)
        self.seed = loader._stream_seed(self.progress)
        timeout, prepare = loader.batch_timeout or None, int(_preparing(loader))
        self.tasks = [
            call.tasks(retries=loader.retries, timeout=timeout, prepare=prepare) for call in calls
        ]
        self.origins = [(batches, state) for batches, _, state in self.progress.lanes]
        self.first = [batches for batches, _, _ in self.progress.lanes]
        self.pushed = list(self.first)
        self.ended = [ended for _, ended, _ in self.progress.lanes]
        self.turn = self.progress.turn
        for lane in range(len(self.tasks)):
            self._fill(lane)

    def _fill(self, lane):
        room = max(self.loader.prefetch_factor, 1)
        while not self.ended[lane] and self.pushed[lane] - self.first[lane] < room:
            # `list` copies the set in one step, because another thread may begin an epoch of the same loader.
            runs = tuple(list(self.loader._runs))
            task = self.run, self.pushed[lane], self.first[lane], self.seed, self.origins[lane], runs
            self.tasks[lane].push(task)
            self.pushed[lane] += 1

    def next(self):
        if all(self.ended):
            raise StopIteration
        lane, result = self._wait()
        after = (lane + 1) % len(self.tasks)
        self.turn = after
        number = self.first[lane]
        self.first[lane] += 1
        _, reply, failure = result
        if failure is not None:
            self._fill(lane)
            error = _lost(failure, number, None, self.loader, self.team, lane)
            return (lane, False, None, after), None, error
        if reply[0] == END:
            self.ended[lane] = True
            return (lane, True, None, after), None, _Skip()
        self._fill(lane)
        if reply[0] == BATCH:
            return (lane, False, reply[3], after), reply[1], None
        return (lane, False, None, after), None, _failed(reply, number, None)

    def _wait(self):
        timeout = self.loader.timeout or None
        while self.ended[self.turn]:
            self.turn = (self.turn + 1) % len(self.tasks)
        if self.loader.in_order or sum(not ended for ended in self.ended) == 1:
            result = self.tasks[self.turn].next(timeout)
            if result is None:
                raise self._late([self.turn])
            return self.turn, result
        live = [lane for lane in range(len(self.tasks)) if not self.ended[lane]]
        deadline = timeout and time.monotonic() + timeout
        pause = 0
        while True:
            for lane in live:
                result = self.tasks[lane].next(pause)
                if result is not None:
                    return lane, result
            pause = 0.001
            if deadline and time.monotonic() > deadline:
                raise self._late(live)

    def _late(self, lanes):
        running = [(None, lane, *task[2:]) for lane in lanes for task in self.tasks[lane].running()]
        return _late(self.loader, self.team, running, {None: (min(self.first[lane] for lane in lanes), None)})

    def close(self):
        self.loader._runs.discard(self.run)
        self.tasks = []


class _Pinned:
    """Batches of another source, which a thread copies into pinned memory, ahead of the consumer."""

    def __init__(self, source, ahead):
        self.source = source
        self.results = queue.Queue(max(ahead, 1))
        self.stop = threading.Event()
        self.thread = threading.Thread(target=_pin_loop, args=(source, self.results, self.stop), daemon=True)
        self.thread.start()
        self.ended = False

    def next(self):
        if self.ended:
            raise StopIteration
        while True:
            try:
                item, error = self.results.get(timeout=0.1)
            except queue.Empty:
                continue
            if error is None:
                return item
            if isinstance(error, StopIteration):
                self.ended = True
            try:
                raise error
            finally:
                # The traceback of the exception refers to this frame.
                del error

    def close(self):
        self.stop.set()
        # The interpreter may collect garbage in any thread.
        if self.thread is not threading.current_thread():
            self.thread.join()
        self.source.close()


def _pin_loop(source, results, stop):
    ended = False
    while not (ended or stop.is_set()):
        try:
            token, batch, error = source.next()
            item = (token, _pin(batch), error), None
        except BaseException as error:
            item = None, error
            ended = isinstance(error, StopIteration)
            # The consumer does not need the frames of this thread, and they would keep the workers alive.
            error.__traceback__ = None
        while not stop.is_set():
            try:
                results.put(item, timeout=0.1)
                break
            except queue.Full:
                pass
        item = token = batch = error = None


def _pin(batch):
    from torch.utils.data._utils.pin_memory import pin_memory

    return pin_memory(batch)
