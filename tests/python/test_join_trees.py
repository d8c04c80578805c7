"""Joins of joined tensors, and `reshape`: equal to torch's, for random trees of joins, slices, permutations and shapes."""

import io
import math
import pickle

import numpy as np
import pytest
import torch
from ranged import Ranges
from support import assert_same_bits, assert_same_values

import rustload

STEPS = 6
LEAF_SHAPES = [(2, 3, 4), (2, 3, 4), (4, 6), (12, 2), (5,), (2, 1, 3), (1, 4), (3, 0, 2)]


class Tree:
    """Pairs of a lazy tensor and the same of torch, to which random operations are applied."""

    def __init__(self, ckpt: rustload.Checkpoint, tensors: dict[str, torch.Tensor], seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.leaves = [(ckpt[name], tensors[name]) for name in tensors]

    def pick(self, *choices):
        return choices[self.random.integers(len(choices))]

    def leaf(self):
        return self.leaves[self.random.integers(len(self.leaves))]

    def joined(self, first):
        """The pair joined with others of its shape: itself, or slices of itself."""
        lazy, real = first
        join = self.pick("stack", "concat") if real.ndim else "stack"
        count = int(self.random.integers(1, 4))
        if join == "stack":
            dim = int(self.random.integers(-real.ndim - 1, real.ndim + 1))
            return rustload.stack([lazy] * count, dim), torch.stack([real] * count, dim)
        dim = int(self.random.integers(-real.ndim, real.ndim))
        lazies, reals = [lazy], [real]
        for _ in range(count):
            size = int(self.random.integers(0, real.shape[dim] + 1))
            key = [slice(None)] * real.ndim
            key[dim] = slice(real.shape[dim] - size, None)
            lazies.append(lazy[tuple(key)])
            reals.append(real[tuple(key)])
        return rustload.concat(lazies, dim), torch.cat(reals, dim)

    def sliced(self, pair):
        lazy, real = pair
        key = []
        for size in real.shape:
            start, stop = sorted(int(at) for at in self.random.integers(0, size + 1, 2))
            step = int(self.random.integers(1, 3))
            key.append(self.pick(slice(None), slice(None), slice(start, stop, step)))
            if size and self.random.random() < 0.1:
                key[-1] = int(self.random.integers(-size, size))
            if self.random.random() < 0.1:
                key.append(None)
        return lazy[tuple(key)], real[tuple(key)]

    def permuted(self, pair):
        lazy, real = pair
        order = [int(dim) for dim in self.random.permutation(real.ndim)]
        return lazy.permute(*order), real.permute(order)

    def reshaped(self, pair):
        """The pair in a random shape, if the lazy one can have it: torch's elements always can."""
        lazy, real = pair
        factors = [prime for size in real.shape for prime in _primes(size)]
        if self.random.random() < 0.3:
            self.random.shuffle(factors)
        shape = [1] * int(self.random.integers(1, 4))
        at = 0
        for factor in factors:
            at = min(at + int(self.random.random() < 0.4), len(shape) - 1)
            shape[at] *= factor
        given = [*shape]
        if real.numel() and self.random.random() < 0.3:
            given[self.random.integers(len(given))] = -1
        try:
            return lazy.reshape(given), real.reshape(shape)
        except ValueError as error:
            if not error.__notes__ or (
                not isinstance(lazy, rustload.JoinedTensor) and _can_view(lazy, shape)
            ):
                raise
            return pair

    def grown(self):
        pair = self.leaf()
        for _ in range(STEPS):
            step = self.pick(self.joined, self.joined, self.sliced, self.permuted, self.reshaped)
            pair = step(pair)
            if pair[1].numel() > 100_000 or pair[1].ndim > 6:
                break
        return pair


def _primes(number: int) -> list[int]:
    if number == 0:
        return [0]
    found, factor = [], 2
    while number > 1:
        while number % factor == 0:
            found.append(factor)
            number //= factor
        factor += 1
    return found


def _can_view(lazy, shape) -> bool:
    """Whether torch has a view of this shape on the strides that the file has."""
    whole = torch.empty(max(1, sum((n - 1) * s for n, s in zip(lazy.shape, lazy.strides, strict=True)) + 1))
    try:
        whole.as_strided(lazy.shape, lazy.strides).view(shape)
    except RuntimeError:
        return False
    return True


@pytest.fixture(scope="module")
def leaves(tmp_path_factory):
    generator = torch.Generator().manual_seed(0)
    tensors = {f"t{at}": torch.randn(shape, generator=generator) for at, shape in enumerate(LEAF_SHAPES)}
    path = tmp_path_factory.mktemp("trees") / "leaves.pt"
    torch.save(tensors, path)
    return path, tensors


@pytest.mark.parametrize("seed", range(300))
def test_random_trees_of_joins_equal_torchs(leaves, seed):
    path, tensors = leaves
    tree = Tree(rustload.open(path), tensors, seed)
    lazy, real = tree.grown()
    assert lazy.shape == tuple(real.shape)
    assert_same_bits(lazy.materialize(), real.contiguous())
    again = pickle.loads(pickle.dumps(lazy))
    assert_same_bits(again.materialize(), real.contiguous())
    order = [int(dim) for dim in tree.random.permutation(real.ndim)]
    assert_same_values(
        lazy.materialize(dtype="bfloat16", transpose=order), real.permute(order).bfloat16().contiguous()
    )
    out = torch.empty(real.shape, dtype=torch.float64)
    lazy.materialize(out=out, threads=2)
    assert_same_values(out, real.double())
    small, expected = tree.sliced((lazy, real))
    assert_same_bits(small.materialize(), expected.contiguous())
    file = io.BytesIO()
    rustload.save({"x": lazy}, file)
    assert_same_bits(rustload.open(file.getvalue())["x"].materialize(), real.contiguous())


@pytest.mark.parametrize("seed", range(0, 300, 5))
def test_the_pieces_of_an_upload_are_where_they_belong(leaves, seed):
    """What the GPU's path copies, part by part; here the copies are torch's on the CPU."""
    from rustload._common.request import Request
    from rustload._cuda.split import pieces

    path, tensors = leaves
    tree = Tree(rustload.open(path), tensors, seed)
    lazy, real = tree.joined(tree.grown())
    order = [int(dim) for dim in tree.random.permutation(real.ndim)]
    result = torch.full(real.permute(order).shape, -1.0)
    for piece in pieces(lazy._core, Request(transpose=order, copy=True), result, "auto", lambda: 1e9):
        part = piece.core.materialize(piece.request)
        piece.target.copy_(torch.from_dlpack(part))
    assert_same_bits(result, real.permute(order).contiguous())


@pytest.mark.parametrize("seed", range(60))
def test_the_ranges_of_an_upload_are_where_they_belong(leaves, seed):
    """As above, for frameworks that get whole ranges of the result; other joins are refused."""
    from rustload._common.request import Request
    from rustload._cuda.split import cpu_only_pieces

    class Bytes:
        """Stands in for a buffer of the GPU."""

        def __init__(self, size):
            self.data = np.full(size, 255, np.uint8)

        def part(self, start, dtype, shape):
            return self.data[start : start + shape[0]].view(dtype)

    path, tensors = leaves
    tree = Tree(rustload.open(path), tensors, seed)
    lazy, real = tree.joined(tree.leaf())
    if seed % 2:
        lazy, real = tree.joined((lazy, real))
    order = [int(dim) for dim in tree.random.permutation(real.ndim)] if seed % 3 == 0 else [*range(real.ndim)]
    expected = real.permute(order).contiguous()
    buffer = Bytes(expected.nbytes)
    try:
        for core, request, target in cpu_only_pieces(lazy._core, Request(transpose=order, copy=True), buffer):
            target[:] = np.frombuffer(core.materialize(request).tobytes(), np.uint8)
    except rustload.UnsupportedError as error:
        assert "along its first dimension" in str(error)  # noqa: PT017 - not of every seed
        return
    assert buffer.data.tobytes() == expected.numpy().tobytes()


EXPERTS, WIDE, DEEP = 5, 6, 8


@pytest.fixture
def experts(tmp_path):
    tensors = {f"{e}.{w}": torch.randn(WIDE, DEEP) for e in range(EXPERTS) for w in ("w1", "w3")}
    rustload.save(tensors, tmp_path / "experts", max_shard_size=500)
    ckpt = rustload.open(tmp_path / "experts")
    w1, w3 = ([f"{e}.{w}" for e in range(EXPERTS)] for w in ("w1", "w3"))
    fused = rustload.concat(
        [rustload.stack([ckpt[name] for name in w1]), rustload.stack([ckpt[name] for name in w3])], dim=1
    )
    real = torch.cat(
        [torch.stack([tensors[name] for name in w1]), torch.stack([tensors[name] for name in w3])], 1
    )
    return fused, real


def test_the_fused_layout_of_experts(experts, tmp_path):
    fused, real = experts
    assert repr(fused) == "<JoinedTensor of 10 float32 [5, 12, 8] 1.9 KiB>"
    assert_same_bits(fused.materialize(), real)
    assert_same_bits(fused.mT.materialize(), real.mT.contiguous())
    assert [part.name for part in fused[3, 7].parts] == ["3.w3"]
    assert [part.name for part in fused[2:4, 5:7].parts] == ["2.w1", "3.w1", "2.w3", "3.w3"]
    assert_same_bits(fused[2:4, 5:7, ::3].materialize(), real[2:4, 5:7, ::3].contiguous())
    assert_same_bits(fused.reshape(EXPERTS, 2, WIDE, DEEP)[:, 1].materialize(), real[:, WIDE:].contiguous())
    assert_same_bits(fused.view(-1, DEEP).materialize(), real.view(-1, DEEP))
    report = rustload.save(
        {"gate_up": fused.mT}, tmp_path / "fused.safetensors", dtype="bfloat16", verify=True
    )
    assert (report.tensors, report.converted) == (1, 1)
    found = rustload.open(tmp_path / "fused.safetensors")["gate_up"]
    assert_same_bits(found.materialize(), real.mT.bfloat16().contiguous())


def test_a_slice_reads_only_its_bytes(tmp_path):
    rustload.save({name: torch.randn(512, 512) for name in "abcd"}, tmp_path / "m.safetensors")
    source = Ranges((tmp_path / "m.safetensors").read_bytes())
    ckpt = rustload.open(source)
    pairs = [rustload.stack([ckpt["a"], ckpt["b"]]), rustload.stack([ckpt["c"], ckpt["d"]])]
    joined = rustload.concat(pairs, dim=1).reshape(2, 2, 512, 512)
    before = source.nbytes
    joined[1, 0, 100:108].materialize()
    # Sources without a cheap request are read in blocks of 64 KiB.
    assert source.nbytes - before <= 64 << 10


def test_a_join_is_read_into_a_parameter_of_another_dtype(experts):
    fused, real = experts
    weight = torch.nn.Parameter(torch.empty(real.mT.shape, dtype=torch.float16))
    with torch.no_grad():
        fused.materialize(out=weight, transpose=True)
    assert_same_values(weight.detach(), real.mT.half().contiguous())
    assert fused.stats().total == real.numel()


def test_joins_have_a_bounded_depth_and_number_of_parts(leaves):
    joined = rustload.open(leaves[0])["t4"]
    for _ in range(2000):
        joined = rustload.stack([joined])[0]
    assert [part.name for part in joined.parts] == ["t4"]
    assert_same_bits(joined.materialize(), leaves[1]["t4"])
    for _ in range(20):
        joined = rustload.concat([joined, joined])
    with pytest.raises(ValueError, match="at most 1048576 parts") as caught:
        rustload.concat([joined, joined])
    assert caught.value.__notes__ == ["Read some of them, and join the results."]


SHAPES = [
    ((2, 3, 4), (6, 4)), ((2, 3, 4), (24,)), ((2, 3, 4), (2, -1)), ((2, 3, 4), (4, 3, 2)), ((2, 3, 4), (1, 2, 1, 12, 1)),
    ((24,), (2, 3, 4)), ((1, 1), ()), ((), (1, 1)), ((), (-1,)), ((0, 3), (3, 0, 7)), ((0, 3), (-1, 3)), ((3, 1, 2), (3, 2)),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), SHAPES)
def test_reshape_equals_torchs(save, old, new):
    real = torch.arange(math.prod(old), dtype=torch.int16).reshape(old)
    lazy = rustload.open(save({"w": real}))["w"]
    for found in (
        lazy.reshape(new),
        lazy.view(*new) if new else lazy.view(()),
        rustload.concat([lazy[None]])[0].reshape(new),
    ):
        assert_same_bits(found.materialize(), real.reshape(new))
        assert found.dtype == "int16"
    view = lazy.reshape(new)
    assert view.name == "w"
    assert view.is_contiguous
    if real.numel():
        assert view.materialize(copy=False).untyped_storage().nbytes() >= real.nbytes


def test_shapes_that_do_not_fit_are_refused(save):
    real = torch.arange(24.0).reshape(4, 6)
    ckpt = rustload.open(save({"w": real, "t": real.T, "e": torch.zeros(0, 3)}))
    lazy = ckpt["w"]
    for wrong in ((5, 5), (24, 2), (-1, -1), (-2, 12), (5, -1), (0, -1)):
        with pytest.raises(ValueError, match=r"\[4, 6\] cannot become") as caught:
            lazy.reshape(wrong)
        assert caught.value.code == "Value"
    with pytest.raises(ValueError, match="no size in place of -1"):
        ckpt["e"].reshape(0, -1)
    with pytest.raises(TypeError):
        lazy.view("float16")
    for moved in (lazy.T, lazy[:, :5], ckpt["t"], lazy[:, :4:2]):
        with pytest.raises(ValueError, match="without moving elements") as caught:
            moved.reshape(-1)
        assert "Read it first" in caught.value.__notes__[0]
    assert_same_bits(lazy[:, ::2].reshape(2, 2, 3).materialize(), real[:, ::2].reshape(2, 2, 3))
    halves = rustload.concat([lazy, lazy], dim=1)
    with pytest.raises(ValueError, match="is not a box of shape") as caught:
        halves.reshape(-1)
    assert "Read it first" not in caught.value.__notes__[0]
    assert "reshape the parts before they are joined" in caught.value.__notes__[0]


def test_a_pickled_join_that_is_no_tensor_is_refused(leaves):
    from rustload._tensor.joined import restored_join

    tensor = rustload.open(leaves[0])["t4"]
    for offsets, shape in [
        ([[0], [4]], (9,)), ([[0], [5]], (11,)), ([[0]], (10,)), ([[0], [5]], (10, 1)), ([[0, 0], [5, 0]], (10,)), ([], (0,)),
        ([[0], [2**64 - 1]], (10,)),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match="not those of a joined tensor"):
            restored_join([tensor, tensor], offsets, shape)
    with pytest.raises(ValueError, match="empty"):
        restored_join([], [], ())
