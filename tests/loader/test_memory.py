"""Batch memory is returned when its last reference is gone, and not before."""

import gc

import numpy as np
import torch

from shardio.loader.batch.memory import BufferPool


def pool() -> BufferPool:
    """A pool of 4 x 3 float32 arrays that keeps two."""
    return BufferPool((4, 3), np.dtype(np.float32))


def test_dropped_memory_is_used_again() -> None:
    """Memory without references is lent again."""
    lender = pool()
    address = lender.lend().ctypes.data
    assert lender.lend().ctypes.data == address


def test_memory_in_use_is_left_alone() -> None:
    """A tensor, a view of it, or an array made from it each keep the memory in use, without the garbage collector."""
    lender = pool()
    gc.disable()
    try:
        keepers = []
        for keep in (lambda t: t, lambda t: t[1:2, 0], lambda t: t.numpy()[2:], lambda t: t.permute(1, 0).float()):
            loan = lender.lend()
            loan[:] = len(keepers)
            keepers.append(keep(torch.from_numpy(loan)))
            del loan
        for number, kept in enumerate(keepers):
            assert (np.asarray(kept) == number).all()
        del keepers, kept
        assert len({lender.lend().ctypes.data for _ in range(8)}) <= 2
    finally:
        gc.enable()


def test_views_of_a_loan_keep_it() -> None:
    """A slice of the array keeps the memory in use."""
    lender = pool()
    kept = lender.lend()[1:]
    kept[:] = 7
    other = lender.lend()
    other[:] = 9
    assert (kept == 7).all()


def test_nothing_to_lend() -> None:
    """A shape with a 0 in it gives an empty array."""
    assert BufferPool((4, 0), np.dtype(np.int64)).lend().shape == (4, 0)
