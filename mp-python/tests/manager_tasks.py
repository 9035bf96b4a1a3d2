"""Functions and classes of the processes of `test_manager`. Imports little, so that processes start fast."""

import os
import signal
import time

from multiproc.managers import BaseManager, BaseProxy, IteratorProxy, ManagerLost, SyncManager

WAIT = 20


class FooBar:
    def f(self):
        return "f()"

    def g(self):
        raise ValueError

    def _h(self):
        return "_h()"


def baz():
    for i in range(10):
        yield i * i


class CountProxy(IteratorProxy):
    _exposed_ = ("__next__",)


class MyManager(BaseManager):
    pass


MyManager.register("Foo", callable=FooBar)
MyManager.register("Bar", callable=FooBar, exposed=("f", "_h"))
MyManager.register("baz", callable=baz, proxytype=CountProxy)


class Shelf:
    """A class with a method that returns a proxy."""

    def box(self):
        return [1]


class ShelfProxy(BaseProxy):
    _exposed_ = ("box",)
    _method_to_typeid_ = {"box": "list"}

    def box(self):
        return self._callmethod("box")


class ShelfManager(SyncManager):
    pass


ShelfManager.register("Shelf", Shelf, ShelfProxy)


def sqr(x):
    return x * x


def append(items, x):
    items.append(x)


def append_all(items, lock, count):
    for _ in range(count):
        with lock:
            items[0] += 1


def fill(d, items, queue, namespace, value, array):
    d["x"] = 1
    items.append(2)
    queue.put(namespace.y)
    value.value += 1
    array[0] = 9


def put(queue, x):
    queue.put(x)


def get_forwarded(inbox, outbox):
    proxy = inbox.get(timeout=WAIT)
    proxy.append(os.getpid())
    outbox.put(proxy)


def wait_event(event, done):
    event.wait(WAIT)
    done.put(1)


def notify(condition, flags):
    with condition:
        flags.append(1)
        condition.notify_all()


def pass_barrier(barrier, done):
    barrier.wait(WAIT)
    done.put(1)


def work(queue, done):
    while (item := queue.get(timeout=WAIT)) is not None:
        done.append(item)
        queue.task_done()
    queue.task_done()


def connect_and_put(make, address, authkey, values):
    manager = make(address=address, authkey=authkey)
    manager.connect()
    queue = manager.get_queue()
    for value in values:
        queue.put(value)


def report_lost(items, started, lost):
    """Calls a method until the server has ended."""
    started.put(os.getpid())
    try:
        while True:
            len(items)
            time.sleep(0.001)
    except ManagerLost as error:
        lost.put((isinstance(error, EOFError), isinstance(error, ConnectionError), str(error)))


def wait_for_item(queue, started, lost):
    started.put(os.getpid())
    try:
        queue.get()
    except ManagerLost:
        lost.put("lost")


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def fail():
    raise OSError("no device")
