"""Leaving the batches of an epoch by a signal (Ctrl-C), at whatever moment."""

import random
import signal
import threading
from pathlib import Path
from types import FrameType

import torch

from rayrec.config.train import IngestConfig
from rayrec.ingest.batches import read_split
from rayrec.ingest.loader import open_batches
from tests.builders import make_dataset


def test_every_interrupt_ends_the_block_and_its_thread(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "data", 2_000)
    store, config = read_split(dataset, "train", torch.device("cpu")), IngestConfig(in_memory=True)

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before, chance = threading.active_count(), random.Random(3)
    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(300):
            try:
                with open_batches(
                    dataset, "train", config, store=store, global_batch_size=16, drop_last=True, seed=1
                ) as batches:
                    signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-4, 4e-3))
                    for _ in batches:
                        pass
                    while True:
                        pass
            except KeyboardInterrupt:
                pass
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            assert threading.active_count() == before
    finally:
        signal.signal(signal.SIGALRM, previous)
