"""Processes of an attack: all that a command has started, however they were orphaned since, and how they are killed."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

import psutil

ROOT_VARIABLE = "DIFFRETRIEVER_ATTACK"
"""Number of the process below which all others of the command are."""
_SUBREAPER = 36


def adopt_orphans() -> None:
    """From now on, be the parent of all descendants whose own has died, and say so to those that start."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    os.environ[ROOT_VARIABLE] = str(os.getpid())


def everybody() -> set[psutil.Process]:
    """Return all processes of the command that live, without its first."""
    root = psutil.Process(int(os.environ[ROOT_VARIABLE]))
    alive: set[psutil.Process] = set()
    for process in root.children(recursive=True):
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                alive.add(process)
    return alive


def since(before: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return those that live and were not there `before`."""
    return sorted(everybody() - set(before), key=lambda process: process.pid)


def names(processes: Iterable[psutil.Process]) -> str:
    """Return what the processes are called, for a person."""
    told = []
    for process in processes:
        with suppress(psutil.Error):
            told.append(f"{process.pid} {' '.join(process.cmdline())[:100]}")
    return "; ".join(told)


def wait_for_none(
    before: Iterable[psutil.Process], seconds: float, but: Callable[[psutil.Process], bool] = lambda _: False
) -> list[psutil.Process]:
    """Return who is left of those that came after `before`, at most so many seconds from now; `but` says who may be."""
    end = time.monotonic() + seconds
    while (left := [each for each in since(before) if not but(each)]) and time.monotonic() < end:
        time.sleep(0.1)
    return left


def kill_since(before: Iterable[psutil.Process]) -> int:
    """Kill all that came after `before`, and what these start meanwhile; return how many there were."""
    killed = 0
    while left := since(before):
        for process in left:
            with suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
                killed += 1
        time.sleep(0.05)
    return killed


def bury() -> None:
    """Take note of orphans that have ended; whoever is the parent of all calls this now and then."""
    for process in psutil.Process().children():
        with suppress(psutil.Error, ChildProcessError):
            if process.status() == psutil.STATUS_ZOMBIE and process.pid not in _OWN:
                os.waitpid(process.pid, os.WNOHANG)


_OWN: set[int] = set()


def own(pid: int) -> None:
    """Leave a child to whoever waits for it."""
    _OWN.add(pid)
