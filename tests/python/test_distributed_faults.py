"""`rustload.torch.distributed.Writer` under faults: two saves to one folder, kills, ranks that fail."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_folder_faults import KILLS, hidden, kill_savers, names, tensors, value_of
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import DefaultSavePlanner

from rustload.torch.distributed import Writer


def writer_to(path: Path) -> Writer:
    return Writer(path, max_shard_size=1000, overwrite=True, fsync=False)


def save(path: Path, value: int) -> None:
    dcp.save(tensors(value), storage_writer=writer_to(path), no_dist=True)


class Steps:
    """A save, step by step."""

    def __init__(self, path: Path, value: int) -> None:
        self.writer, self.planner = writer_to(path), DefaultSavePlanner()
        self.planner.set_up_planner(tensors(value), is_coordinator=True)
        self.writer.set_up_storage_writer(True)
        self.plan = self.writer.prepare_local_plan(self.planner.create_local_plan())

    def prepare(self) -> None:
        plans, self.metadata = self.planner.create_global_plan([self.plan])
        (plan,) = self.writer.prepare_global_plan(plans)
        self.plan = self.planner.finish_plan(plan)

    def write(self) -> None:
        self.results = self.writer.write_data(self.plan, self.planner).wait()

    def finish(self) -> None:
        self.writer.finish(self.metadata, [self.results])


def test_of_two_saves_to_one_folder_the_second_is_refused(tmp_path):
    one, two = Steps(tmp_path / "model", 1), Steps(tmp_path / "model", 2)
    one.prepare()
    with pytest.raises(OSError, match="another writer") as caught:
        two.prepare()
    assert caught.value.code == "TargetBusy"
    one.write()
    one.finish()
    assert value_of(tmp_path / "model") == 1
    two.prepare()
    two.write()
    two.finish()
    assert value_of(tmp_path / "model") == 2
    assert names(tmp_path) == ["model"]


def test_a_save_that_has_lost_its_hidden_folder_does_not_publish_that_of_another(tmp_path):
    one = Steps(tmp_path / "model", 1)
    one.prepare()
    one.write()
    # As another machine does, whose locks the file system does not show.
    (tmp_path / ".model.part" / "token").write_text("of another save")
    with pytest.raises(OSError, match="another writer"):
        one.finish()
    assert not (tmp_path / "model").exists()
    assert (tmp_path / ".model.part" / "token").read_text() == "of another save"


def test_after_a_rank_has_failed_the_same_process_saves_again(tmp_path):
    one = Steps(tmp_path / "model", 1)
    one.prepare()
    one.write()  # and another rank fails: nothing calls finish
    save(tmp_path / "model", 2)
    assert value_of(tmp_path / "model") == 2
    with pytest.raises((ValueError, OSError)):
        one.finish()
    assert value_of(tmp_path / "model") == 2
    assert names(tmp_path) == ["model"]


def test_every_step_of_a_save_over_another_one_leaves_a_whole_one(tmp_path):
    """After each of its renames the folder is the old checkpoint, until the index is renamed."""
    path = tmp_path / "model"
    save(path, 1)
    one = Steps(path, 2)
    one.prepare()
    one.write()
    stage = one.writer._stage
    assert stage is not None
    staged = Path(stage.path)
    shards = sorted(one.name for one in staged.glob("*.safetensors"))
    assert [shard.startswith("model.generation2-") for shard in shards] == [True] * 3
    for shard in shards:
        (staged / shard).replace(path / shard)
        assert value_of(path) == 1
    for shard in shards:
        (path / shard).replace(staged / shard)
    one.finish()
    assert value_of(path) == 2
    assert names(path) == [*shards, "model.safetensors.index.json"]
    save(path, 3)
    assert value_of(path) == 3


def test_a_killed_save_leaves_the_old_checkpoint_or_the_new_one(tmp_path):
    path = tmp_path / "model"

    def saves(value: int) -> None:
        size = 1000 if value % 5 else "1GB"
        writer = Writer(path, max_shard_size=size, overwrite=True, fsync=False)
        dcp.save(tensors(value), storage_writer=writer, no_dist=True)

    saves(0)
    kill_savers(path, saves, "dcp", KILLS)


def test_a_killed_first_save_leaves_none_or_a_whole_one(tmp_path):
    chance = random.Random(5)
    for number in range(KILLS // 2):
        path = tmp_path / str(number)
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                save(path, 1)
            os._exit(0)
        time.sleep(chance.random() * 0.03)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert not path.exists() or value_of(path) == 1
        save(path, 2)
        assert value_of(path) == 2
        assert hidden(tmp_path) == []


SAVES = """
import sys, torch
from pathlib import Path
from torch.distributed import checkpoint as dcp
from rustload.torch.distributed import Writer
torch.distributed.init_process_group("gloo")
for value in range(1, 1000):
    tensors = {f"t{number}": torch.full((250,), float(value)) for number in range(3)}
    writer = Writer(sys.argv[1], max_shard_size=1000, overwrite=True, fsync=False)
    dcp.save(tensors, storage_writer=writer)
    print(value, flush=True)
"""


@pytest.mark.timeout(400)
def test_two_ranks_that_are_killed_leave_a_whole_checkpoint(tmp_path):
    path = tmp_path / "model"
    for number in range(max(1, KILLS // 24)):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        common = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        command = [sys.executable, "-W", "ignore", "-c", SAVES, str(path)]
        ranks = [
            subprocess.Popen(command, stdout=subprocess.PIPE, env={**common, "RANK": str(rank)})
            for rank in range(2)
        ]
        assert ranks[0].stdout is not None
        assert [int(ranks[0].stdout.readline()) for _ in range(2)] == [1, 2]
        time.sleep(0.01 * number)
        for process in ranks:
            process.send_signal(signal.SIGKILL if number % 2 else signal.SIGTERM)
        for process in ranks:
            process.communicate()
        assert value_of(path) >= 2
        save(path, 1)
        assert hidden(tmp_path) == hidden(path) == []
