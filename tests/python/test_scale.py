"""`python -m benches.scale` in a small configuration, in which every rank can be simulated."""

import sys
from pathlib import Path

import pytest
from support import program

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))

from benches.scale import __main__ as scale  # noqa: E402 - from the repository's root
from benches.scale.shapes import LLAMA_405B, Shapes  # noqa: E402
from benches.scale.stores import CountedObject, system_calls, write_folder  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"
)

# Sizes that 16 and 4 do not divide, and rows long enough for pieces of them to be read one by one.
SMALL = Shapes(layers=2, hidden=1000, intermediate=3004, key_value=124, vocabulary=778)


def test_the_shapes_are_those_of_llama_405b():
    transformers = pytest.importorskip("transformers")
    assert len(LLAMA_405B.tensors()) == 1137
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=40,
    )
    model = transformers.LlamaForCausalLM(config)
    ours = Shapes(layers=2, hidden=64, intermediate=96, key_value=32, vocabulary=40).tensors()
    assert {name: shape for name, (shape, _) in ours.items()} == {
        name: tuple(tensor.shape) for name, tensor in model.state_dict().items()
    }


@pytest.mark.parametrize("tensor_parallel", [1, 4])
@pytest.mark.parametrize("store", ["files", "object"])
def test_all_ranks_together_read_every_element_once(store, tensor_parallel, tmp_path):
    layout = scale.Layout(16, tensor_parallel)
    shards = write_folder(tmp_path, SMALL, shard_bytes=4_000_000)
    most = 1 if tensor_parallel == 1 else 4

    def simulated(rank):
        if store == "files":
            return scale.simulate(SMALL, layout, rank, tmp_path, system_calls)
        # A source whose first answers this machine delays by milliseconds is read with larger gaps, as one that is far away.
        for _ in range(3):
            source = CountedObject(SMALL, latency=0)
            one = scale.simulate(
                SMALL, layout, rank, source, lambda source=source: (source.requests, source.nbytes)
            )
            if one.nbytes <= most * one.share + gaps(one):
                break
        return one

    def gaps(one):
        return (one.requests + len(SMALL.tensors())) * (64 << 10)

    found = [simulated(rank) for rank in range(layout.ranks)]
    replicated = sum(2 * shape[0] for shape, dim in SMALL.tensors().values() if dim is None)
    assert sum(one.share for one in found) == SMALL.nbytes() + (tensor_parallel - 1) * replicated
    for one in found:
        assert one.nbytes + one.metadata_bytes >= one.share
        assert 0 < one.requests < 3000
        if store == "files":
            # Of the short rows of this model, whole ones are read where tensor parallelism cuts them.
            assert one.nbytes <= max(1.05, most) * one.share
            assert shards < one.metadata_requests <= 4 * shards + 4
        else:
            assert (one.metadata_requests, one.metadata_bytes) == (1, 64 << 10)
            assert one.nbytes <= most * one.share + gaps(one)


@pytest.mark.project
def test_the_command_prints_a_line_for_each_layout_and_store():
    printed = program("-m", "benches.scale", "--ranks", 1024, "--layers", 1, "--sample", 7)
    lines = [line for line in printed.splitlines() if line.startswith("FSDP")]
    assert [line.split("  ")[0] for line in lines] == ["FSDP 1024"] * 3 + ["FSDP 128 x TP 8"] * 3
