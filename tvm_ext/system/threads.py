"""Threads of the TVM runtime: as many as this process may use cores, without a trace in its environment.

TVM's own default is half of the logical processors, which is right with two-way simultaneous multithreading and leaves
half of the machine idle without it. Its pool belongs to the thread that calls kernels, and outlives it.
When TVM makes a pool, it binds the calling thread to processors, also to some that it was kept from; here the calling
thread stays where it was.
"""

from __future__ import annotations

import atexit
import itertools
import math
import os
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from tvm_ext.system.bound_pool import SHARED, BoundPool, configure
from tvm_ext.system.cgroup import cpu_quota

VARIABLES = ("TVM_NUM_THREADS", "OMP_NUM_THREADS")
"""What the TVM runtime reads, in this order."""

SPIN_COUNT = "TVM_THREAD_POOL_SPIN_COUNT"
"""How often a thread of the pool gives way before it sleeps; the runtime reads it when it makes its first pool."""

SPINS = 2000
"""About a millisecond where nothing else runs, which bridges what lies between the kernels of a model."""

LOOKS, BETWEEN_LOOKS = 5, 0.004
"""How often to look whether a machine is busy, and seconds between: programs that start are for a moment."""

MOST_POOLS = max(8, len(os.sched_getaffinity(0)))
"""Pools of threads other than the main one: of workers, and as many again that such threads asked for."""

STACK = 8 << 20
"""Bytes of stack of a thread of this module: a model's branches and loops are calls within calls in TVM's C++ code."""

Result = TypeVar("Result")


class _Pool(threading.local):
    """What is known of the calling thread's pool."""

    process: int | None = None
    """The process that the pool was made in; there is none without."""
    of_main = False
    """Whether the thread is the main one, which ends last."""
    bound: BoundPool | None = None
    """The pool if its threads are bound to a core each; None if the system places them."""
    given_up: threading.Event | None = None


_pool = _Pool()
_process = os.getpid()
_first = itertools.count()


@lru_cache(maxsize=1)
def physical_cores() -> int:
    """Count the physical cores this process may use (SMT siblings counted once), at most its quota of them."""
    quota = cpu_quota()
    cores = len(_one_of_each_core())
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def threads() -> int:
    """Count the threads that kernels run in: what the user's environment says, else :func:`physical_cores`."""
    for variable in VARIABLES:
        value = os.environ.get(variable)
        if value is not None:
            return max(1, int(value)) if value.strip().isdecimal() else 1
    return physical_cores()


def use_all_cores() -> None:
    """Give TVM's thread pool of the calling thread :func:`threads` threads, if it was not done before.

    A pool that the thread has already, because it ran kernels of another origin, keeps its size. So does that of a
    further thread where :data:`MOST_POOLS` threads beside the main one were given pools.
    """
    if _pool.process is None and (_is_main() or next(_others) < MOST_POOLS):
        _make_pool()


def with_pool(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function that runs kernels, in a thread whose pool works.

    That is the calling thread if it is the main one, or has such a pool. TVM keeps the pool of a thread that ended, and
    its threads, for as long as the process lives; so other threads, of which a server may start one for each request,
    have a worker of this module make the call. So has a thread of a process that was forked after it had made its pool:
    threads of a pool do not survive a fork, and kernels would wait for them forever.
    """
    process = _pool.process
    if process is None and _is_main():
        _make_pool()
    elif process != _process:
        _running.wait_if_over()
        return _workers.call(lambda: function(*arguments))
    if _pool.bound is not None:
        function, arguments = _pool.bound.call, (function, *arguments)
    if _pool.of_main:  # it is the one that waits for others at the end
        return function(*arguments)
    return before_exit(lambda: function(*arguments))


def in_threads(count: int, function: Callable[[], Result]) -> Result:
    """Call a function whose kernels run in ``count`` threads.

    Where that is not how many the pool of the calling thread has, a thread of its own makes the call. An interrupt does
    not wait for that; the function then ends when it next asks :func:`is_given_up`.
    """
    if count == threads():
        use_all_cores()
        return function()
    outcome: SimpleQueue[tuple[bool, Any]] = SimpleQueue()
    given_up = threading.Event()

    def work() -> None:
        _pool.given_up = given_up
        try:
            before_exit(lambda: _make_pool(count))
            outcome.put((True, before_exit(function)))
        except BaseException as error:
            outcome.put((False, error))

    _start(work)
    try:
        succeeded, value = outcome.get()
    except BaseException:
        given_up.set()
        raise
    if succeeded:
        return cast(Result, value)
    raise value


def is_given_up() -> bool:
    """Whether nobody waits for what the calling thread does any more."""
    return _pool.given_up is not None and _pool.given_up.is_set()


def before_exit(function: Callable[[], Result]) -> Result:
    """Call a function whose end the interpreter waits for before it exits.

    When the interpreter ends, it stops a daemon thread where that next needs the interpreter; behind a kernel that is
    inside of TVM's C++ code, and the process would be aborted. So the interpreter lets such calls finish, and threads
    that would begin another one then wait for the end.
    """
    return _running.call(function)


class _Running:
    """Which threads are in a call that has to finish before the interpreter ends."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._threads: set[int] = set()
        self._over = False

    def call(self, function: Callable[[], Result]) -> Result:
        """Call a function; a thread that is in such a call already may make further ones in it."""
        own = threading.get_ident()
        if own in self._threads:
            return function()
        # No lock: a thread enters the set before it looks whether this is the end, and `finish` looks into the set
        # after it has said so, so that one of them sees the other.
        self._threads.add(own)
        if self._over and not _is_main():
            self._leave(own)
            self.wait_if_over()
        try:
            return function()
        finally:
            self._leave(own)

    def _leave(self, own: int) -> None:
        self._threads.discard(own)
        if self._over:
            with self._changed:
                self._changed.notify_all()

    def wait_if_over(self) -> None:
        """Stop a thread that would begin a call when the interpreter ends, as it stops all daemon threads."""
        if self._over and not _is_main() and threading.get_ident() not in self._threads:
            threading.Event().wait()

    def finish(self) -> None:
        """Wait until all calls have finished, and let none begin that another thread makes."""
        with self._changed:
            self._over = True
            self._changed.wait_for(lambda: not self._threads - {threading.get_ident()})


class _Workers:
    """Threads that own a pool each and stay; so many at most, for further calls wait until one has finished."""

    def __init__(self) -> None:
        self._places = threading.Semaphore(MOST_POOLS)
        self._idle: list[SimpleQueue[Callable[[], None]]] = []

    def call(self, function: Callable[[], Result]) -> Result:
        """Call a function in one of the threads; what it raises is raised here."""
        outcome: SimpleQueue[tuple[bool, Any]] = SimpleQueue()
        with self._places:
            try:
                tasks = self._idle.pop()
            except IndexError:
                tasks = self._start()

            def task() -> None:
                try:
                    result = True, before_exit(function)
                except BaseException as error:
                    self._idle.append(tasks)
                    outcome.put((False, error))
                else:
                    self._idle.append(tasks)  # before the caller goes on: its next call then finds this thread awake
                    outcome.put(result)

            tasks.put(task)
            del task
            succeeded, value = outcome.get()
        if succeeded:
            return cast(Result, value)
        try:
            raise value
        finally:
            del value  # it holds this frame, which holds it

    def _start(self) -> SimpleQueue[Callable[[], None]]:
        tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
        _start(_work, tasks)
        return tasks


def _start(function: Callable[..., None], *arguments: Any) -> None:
    """Start a thread, with room for deep models whatever stack the program's own threads have.

    It is a daemon, because threads may go on running models after the main one has ended.
    """
    thread = threading.Thread(target=function, args=arguments, name="tvm_ext", daemon=True)
    with _starting:
        usual = threading.stack_size()  # of the program, 0 where it is for the system to say
        threading.stack_size(max(usual, STACK))
        try:
            thread.start()
        finally:
            threading.stack_size(usual)


def _work(tasks: SimpleQueue[Callable[[], None]]) -> None:
    before_exit(_make_pool)
    while True:
        task = tasks.get()
        if _pool.bound is None:
            task()
        else:
            _pool.bound.call(task)
        del task  # with the arrays that it is about


def _make_pool(count: int | None = None) -> None:
    count = count or threads()
    cores = _one_of_each_core()
    _let_threads_sleep()
    if count == len(cores) and next(_first) == 0:
        _pool.bound = BoundPool(cores)
    else:
        # Further pools of this process share the cores with the first, and threads of other processes that have
        # fewer than all cores would all sit on the same ones: the system places them.
        processors = sorted(os.sched_getaffinity(0))
        configure(SHARED, count, (processors * count)[:count])  # makes as many threads as there are entries
        if count < len(processors):
            configure(SHARED, count, processors)
    _pool.process, _pool.of_main = os.getpid(), _is_main()


@lru_cache(maxsize=1)
def _let_threads_sleep() -> None:
    """Bound how long threads without work spin, unless the user's environment says it.

    TVM lets them give way 300,000 times, 0.1 s on an idle machine. Where other programs want the processors, each time
    takes a time slice of theirs: kernels then wait for one at every turn, and a process that ends, which waits for its
    threads, for minutes. There they sleep at once.
    """
    if SPIN_COUNT not in os.environ:
        # Not `os.environ`, which stays as the user left it; the runtime asks the C library.
        os.putenv(SPIN_COUNT, "0" if _is_busy() else str(SPINS))


def _is_busy() -> bool:
    """Whether other threads want all the processors there are, each time one looks."""
    for look in range(LOOKS):
        if look:
            time.sleep(BETWEEN_LOOKS)
        if _others_that_run() < (os.cpu_count() or 1):
            return False
    return True


def _others_that_run() -> int:
    """Count the threads of this machine, other than the calling one, that run or wait for a processor."""
    try:
        return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0]) - 1
    except (OSError, ValueError, IndexError):
        return 0


def _is_main() -> bool:
    return threading.get_ident() == threading.main_thread().ident


def _renew() -> None:
    """Start anew in a forked child, where none of the workers is."""
    global _workers, _others, _running, _process, _starting
    _starting = threading.Lock()
    _workers, _others, _running, _process = _Workers(), itertools.count(), _Running(), os.getpid()


def _one_of_each_core() -> list[int]:
    """List the first processor of each physical core that this process may run on."""
    allowed = sorted(os.sched_getaffinity(0))
    cores: dict[str, int] = {}
    for cpu in allowed:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.setdefault(siblings.read_text().strip(), cpu)
        except OSError:
            return allowed
    return list(cores.values())


_workers = _Workers()
_others = itertools.count()
_running = _Running()
_starting = threading.Lock()
atexit.register(lambda: _running.finish())  # after all threads but daemons have ended
os.register_at_fork(after_in_child=_renew)
