"""Folders for a run's databases."""

from __future__ import annotations

import os
import random

from headrace.engine.contract.operators import HEAP
from headrace.engine.simulation.campaign.local_disk import LocalDisk
from headrace.engine.simulation.coverage import Coverage


def test_no_two_databases_share_a_folder_and_nothing_is_left() -> None:
    disk = LocalDisk(random.Random(1), Coverage())
    assert disk.backend(database=False) is HEAP
    assert disk.backend(database=True).kind == "rocksdb"
    folders = {disk.folder(), disk.folder()}
    assert len(folders) == 2
    (root,) = {os.path.dirname(folder) for folder in folders}
    assert os.path.isdir(root)
    disk.close()
    assert not os.path.exists(root)
