"""`rustload.torch.load_into`: a checkpoint into modules of every kind, and the errors if they do not fit."""

import contextlib
import copy
import gc
import re
from collections import OrderedDict

import pytest
import torch
from support import WAIT, assert_same_bits, limited_child, torch_child

import rustload
from rustload.torch import load_into
from rustload.torch._slots import device_rule, slots_of

pytestmark = pytest.mark.usefixtures("no_torch_load")

MIB = 1 << 20


class Model(torch.nn.Module):
    """Tied embedding and head, a BatchNorm, and a non-persistent buffer, which no file has."""

    def __init__(self, *, tied: bool = True) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(40, 16)
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(16, 24), torch.nn.Linear(24, 16)) for _ in range(3)
        )
        self.norm = torch.nn.BatchNorm1d(16)
        self.head = torch.nn.Linear(16, 40, bias=False)
        self.register_buffer("scratch", torch.ones(3), persistent=False)
        if tied:
            self.head.weight = self.embed.weight


def allocated(*, tied: bool = True, seed: int = 0) -> Model:
    """A model whose parameters have memory on the CPU."""
    torch.manual_seed(seed)
    model = Model(tied=tied)
    model.norm.running_mean.uniform_()
    return model


def on_meta(*, tied: bool = True) -> Model:
    with torch.device("meta"):
        return Model(tied=tied)


def assert_equal(found: torch.nn.Module, expected: dict[str, torch.Tensor], dtype=None) -> None:
    state = found.state_dict()
    assert list(state) == list(expected)
    for name, tensor in expected.items():
        wanted = tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor
        assert_same_bits(state[name], wanted)


@pytest.fixture(params=["bin", "safetensors", "legacy"])
def file(request, save):
    state = allocated().state_dict()
    if request.param == "safetensors":
        return save({name: tensor.clone() for name, tensor in state.items()}, "model.safetensors")
    return save(state, "model.bin", _use_new_zipfile_serialization=request.param == "bin")


def test_an_allocated_module_is_filled_in_place(file):
    model = allocated(seed=1)
    before = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    parameters = list(model.parameters())
    report = load_into(model, file)
    assert_equal(model, allocated().state_dict())
    assert {name: tensor.data_ptr() for name, tensor in model.state_dict().items()} == before
    assert all(old is new for old, new in zip(parameters, model.parameters(), strict=True))
    assert (report.missing, report.unexpected, report.mismatched, report.converted) == ([], [], [], [])
    assert report.tied == [["embed.weight", "head.weight"]]
    assert report.bytes == sum(p.nbytes for p in model.parameters()) + sum(
        b.nbytes for name, b in model.named_buffers() if name != "scratch"
    )


def test_a_matrix_and_its_transpose_on_one_storage_are_two_parameters(save):
    """They have dtype, shape and offset in common, and differ in strides."""
    square = torch.arange(9.0).reshape(3, 3)
    model = torch.nn.Module()
    model.a = torch.nn.Parameter(torch.empty(3, 3, device="meta"))
    model.b = torch.nn.Parameter(torch.empty(3, 3, device="meta"))
    load_into(model, save({"a": square, "b": square.t()}))
    assert model.a is not model.b
    assert_same_bits(model.a.detach(), square)
    assert_same_bits(model.b.detach(), square.t())


def test_a_fill_in_place_increments_the_version_counter(save):
    """Autograd detects by the version counter that a saved value was overwritten."""
    state = {
        "straight": torch.ones(3, 4),
        "cast": torch.ones(5),
        "strided": torch.ones(4, 3),
        "buffer": torch.ones(2),
    }
    path = save(state)
    model = torch.nn.Module()
    model.straight = torch.nn.Parameter(torch.zeros(3, 4))
    model.cast = torch.nn.Parameter(torch.zeros(5, dtype=torch.float64))
    model.strided = torch.nn.Parameter(torch.zeros(3, 4).t())
    model.register_buffer("buffer", torch.zeros(2))
    before = {name: tensor._version for name, tensor in model.state_dict(keep_vars=True).items()}
    squares = {name: parameter.square().sum() for name, parameter in model.named_parameters()}
    load_into(model, path)
    for name, tensor in model.state_dict(keep_vars=True).items():
        assert bool((tensor == 1).all())
        assert tensor._version > before[name], name
    for value in squares.values():
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            value.backward()


def test_a_module_on_meta_gets_storage_and_keeps_ties_and_requires_grad(file):
    model = on_meta()
    model.norm.requires_grad_(requires_grad=False)
    model.embed.weight.tag = "kept"
    report = load_into(model, file)
    assert_equal(model, allocated().state_dict())
    assert model.head.weight is model.embed.weight
    assert model.embed.weight.tag == "kept"
    assert not model.norm.weight.requires_grad
    assert model.layers[0][0].weight.requires_grad
    assert isinstance(model.layers[0][0].weight, torch.nn.Parameter)
    assert report.on_meta == ["scratch"]
    assert "1 on meta" in str(report)


def test_a_module_on_meta_can_be_trained_and_the_file_stays_as_it_is(file):
    model = on_meta()
    load_into(model, file)
    before = file.read_bytes()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model.head(model.layers[0](model.embed(torch.tensor([1, 2])))).sum().backward()
    optimizer.step()
    assert file.read_bytes() == before
    assert not torch.equal(model.embed.weight, allocated().embed.weight)


@pytest.mark.parametrize("start", [allocated, on_meta])
@pytest.mark.parametrize("dtype", ["bfloat16", torch.float16, "F64"])
def test_a_plain_dtype_applies_to_floats_only(file, start, dtype):
    model = start()
    parameters = list(model.parameters())
    report = load_into(model, file, dtype=dtype)
    wanted = {"bfloat16": torch.bfloat16, "F64": torch.float64}.get(dtype, dtype)
    assert_equal(model, allocated().state_dict(), wanted)
    assert model.norm.num_batches_tracked.dtype == torch.int64
    assert model.head.weight is model.embed.weight
    assert (
        len(report.converted) == sum(1 for name in model.state_dict()) - 2
    )  # the counter, and the tied name
    assert report.converted[0].source == "float32"
    if start is allocated:  # so an optimizer that has them keeps working
        assert all(old is new for old, new in zip(parameters, model.parameters(), strict=True))


def test_without_a_dtype_the_model_keeps_its_dtypes(file):
    model = on_meta().to(torch.bfloat16)
    load_into(model, file)
    assert_equal(model, allocated().state_dict(), torch.bfloat16)
    model = allocated(seed=1).half()
    load_into(model, file)
    assert_equal(model, allocated().state_dict(), torch.float16)


def test_assign_true_takes_the_files_dtypes(file):
    model = allocated(seed=1).half()
    load_into(model, file, assign=True)
    assert_equal(model, allocated().state_dict())
    assert model.head.weight is model.embed.weight


def test_a_dtype_by_pattern_and_by_callable(file):
    model = on_meta()
    load_into(model, file, dtype={"layers.*": "bfloat16", "norm.weight": "float64"})
    assert model.layers[2][1].bias.dtype == torch.bfloat16
    assert (model.norm.weight.dtype, model.norm.bias.dtype) == (torch.float64, torch.float32)
    model = on_meta()
    load_into(model, file, dtype=lambda lazy: "float16" if lazy.ndim == 2 else None)
    assert (model.embed.weight.dtype, model.norm.weight.dtype) == (torch.float16, torch.float32)


@pytest.mark.parametrize("start", [allocated, on_meta])
def test_a_transpose_by_pattern(save, start):
    state = allocated().state_dict()
    path = save({name: tensor.t().contiguous() if "layers" in name and tensor.ndim == 2 else tensor
                 for name, tensor in state.items()})  # fmt: skip
    model = start()
    load_into(model, path, transpose=lambda lazy: lazy.ndim == 2 and lazy.name.startswith("layers"))
    assert_equal(model, state)
    assert model.layers[0][0].weight.is_contiguous()


def test_a_plain_transpose_is_refused(file):
    with pytest.raises(ValueError, match="for all tensors at once"):
        load_into(allocated(), file, transpose=True)


class Recurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = torch.nn.LSTM(3, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.out = torch.nn.Linear(4, 2)
        self.register_buffer("scale", torch.rand(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found, _ = self.rnn(x)
        return self.out(self.norm(found[-1])) * self.scale


@pytest.mark.filterwarnings("ignore")  # torch.jit is deprecated
@pytest.mark.parametrize(
    "options", [{}, {"assign": True}, {"copy": True, "assign": True}, {"dtype": "float64"}]
)
@pytest.mark.parametrize("start", ["scripted", "loaded", "meta", "traced"])
def test_a_torchscript_file_loads_into_the_matching_script_module(tmp_path, start, options):
    source = Recurrent().eval()
    x = torch.randn(5, 2, 3)
    torch.jit.save(torch.jit.script(source), tmp_path / "script.pt")
    if start == "scripted":
        model = torch.jit.script(Recurrent().eval())
    elif start == "traced":
        model = torch.jit.trace(Recurrent().eval(), x, check_trace=False)
    else:
        model = torch.jit.load(tmp_path / "script.pt", map_location="cpu" if start == "loaded" else "meta")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
    report = load_into(model, tmp_path / "script.pt", **options)
    assert (report.missing, report.unexpected, report.on_meta) == ([], [], [])
    dtype = getattr(torch, options.get("dtype", "float32"))
    if start == "traced" and dtype == torch.float64:
        return  # the traced code creates the initial state in float32
    found = model(x.to(dtype))
    assert found.dtype == dtype
    torch.testing.assert_close(found, source.to(dtype)(x.to(dtype)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("load", ["load_into", "state_dict", "own_code"])
def test_models_that_are_loaded_from_one_handle_share_no_memory(save, load, legacy):
    state = allocated().state_dict()
    path = save(state, _use_new_zipfile_serialization=not legacy)
    ckpt = rustload.open(path, framework="torch")
    lazy = rustload.torch.state_dict(ckpt)
    view = ckpt["embed.weight"].materialize()
    models = [on_meta(), on_meta()]
    for model in models:
        if load == "state_dict":  # as transformers loads: the tensor of each handle is assigned
            tensors = {name: handle.tensor() for name, handle in lazy.items()}
            model.load_state_dict(tensors, assign=True)
            model.tie = tensors["embed.weight"].data_ptr() == tensors["head.weight"].data_ptr()
        else:
            if load == "own_code":
                model.register_load_state_dict_pre_hook(lambda *_: None)
            load_into(model, ckpt)
            model.tie = model.embed.weight is model.head.weight
    teacher, student = models
    assert teacher.tie
    assert student.tie
    assert_equal(student, state)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.zero_()
        student.norm.running_mean.fill_(7)
    assert_equal(teacher, state)
    assert_same_bits(view, state["embed.weight"])
    assert_same_bits(ckpt["embed.weight"].materialize(), state["embed.weight"])
    view.zero_()
    assert_equal(teacher, state)


def test_a_model_with_views_outlives_its_checkpoint_and_keeps_its_edits(save):
    state = allocated().state_dict()
    model = on_meta()
    load_into(model, save(state))
    gc.collect()
    model.norm.weight.data.fill_(3)
    state["norm.weight"].fill_(3)
    gc.collect()
    assert_equal(model, state)


def test_copy_true_loads_owned_memory_instead_of_views(save):
    state = allocated().state_dict()
    path = save(state)
    views, copies = on_meta(), on_meta()
    load_into(views, path)
    load_into(copies, path, copy=True)
    path.write_bytes(bytes(path.stat().st_size))  # in place: views may see it, owned memory does not
    assert_equal(copies, state)


def test_a_strided_parameter_is_filled_in_windows(save):
    value = torch.randn(700, 900)
    path = save({"w": value})
    model = torch.nn.Module()
    model.w = torch.nn.Parameter(torch.zeros(900, 700).t())
    load_into(model, path, memory=MIB)
    assert_same_bits(model.w.detach(), value)
    assert model.w.stride() == (1, 700)


def test_a_row_larger_than_the_window_is_split(save):
    value = torch.randn(2, 3, 400_000)
    path = save({"w": value})
    model = torch.nn.Module()
    model.w = torch.nn.Parameter(torch.zeros(400_000, 3, 2).permute(2, 1, 0))
    load_into(model, path, memory="1MiB")
    assert_same_bits(model.w.detach(), value)


# Names.


def test_nested_and_prefixed_names(save):
    state = allocated().state_dict()
    path = save({"epoch": 3, "state_dict": {f"module.{name}": tensor for name, tensor in state.items()},
                 "optimizer": {"state": {0: {"exp_avg": torch.zeros(3)}}}})  # fmt: skip
    for key in ("state_dict", ("state_dict",)):
        model = on_meta()
        load_into(model, path, key=key, strip="module.")
        assert_equal(model, state)
    model = on_meta()
    load_into(model, path, key="state_dict", strip=["other", "module"])
    assert_equal(model, state)


def test_the_error_suggests_the_matching_prefix(save):
    path = save(
        {"state_dict": {f"module.{name}": tensor for name, tensor in allocated().state_dict().items()}}
    )
    with pytest.raises(rustload.ModelMismatchError) as caught:
        load_into(allocated(), path)
    assert "strip='state_dict.module.'" in "\n".join(caught.value.__notes__)
    with pytest.raises(ValueError, match="no tensor is under key 'model'") as caught:
        load_into(allocated(), path, key="model")
    assert "'state_dict' (" in caught.value.__notes__[0]


def test_the_error_suggests_the_matching_submodule(save):
    path = save(allocated().layers.state_dict())
    with pytest.raises(rustload.ModelMismatchError) as caught:
        load_into(allocated().layers[0], path)
    assert "key='0'" in "\n".join(caught.value.__notes__)
    with pytest.raises(rustload.ModelMismatchError) as caught:
        load_into(torch.nn.ModuleDict({"layers": allocated().layers}), path)
    assert "under 'layers'" in "\n".join(caught.value.__notes__)


@pytest.mark.parametrize("rename", [
    {"enc": "layers", "tok.weight": "embed.weight", "out": "head", re.compile(r"^ln\."): "norm.", "junk": None},
    [(r"^enc\.", "layers."), (r"^tok\b", "embed"), (r"^out\b", "head"), (r"^ln\b", "norm"), (r"^junk.*", "scratchy")],
    lambda name: None if name.startswith("junk") else (
        name.replace("enc.", "layers.").replace("tok.", "embed.").replace("out.", "head.").replace("ln.", "norm.")),
])  # fmt: skip
def test_names_are_renamed_by_mapping_regex_or_callable(save, rename):
    state = allocated().state_dict()
    others = {"layers": "enc", "embed": "tok", "head": "out", "norm": "ln"}
    path = save({
        **{f"{others[name.partition('.')[0]]}.{name.partition('.')[2]}": tensor for name, tensor in state.items()},
        "junk.x": torch.ones(1),
    })  # fmt: skip
    model = on_meta()
    report = load_into(model, path, rename=rename, strict=not isinstance(rename, list))
    assert_equal(model, state)
    assert report.unexpected == (["scratchy"] if isinstance(rename, list) else [])


def test_two_tensors_renamed_to_one_name_are_a_value_error(save):
    path = save({"a": torch.ones(2), "b": torch.ones(2)})
    with pytest.raises(ValueError, match="'a' and 'b' would both be named 'c'"):
        load_into(torch.nn.Module(), path, rename=lambda _: "c")


@pytest.mark.parametrize("rename", ["a", 3, {1: "a"}])
def test_a_rename_of_a_wrong_type_is_a_type_error(simple, rename):
    with pytest.raises(TypeError, match="rename="):
        load_into(torch.nn.Module(), simple, rename=rename)


# Mismatches.


def test_all_mismatches_are_in_one_error_and_nothing_is_changed(save):
    state = dict(allocated().state_dict())
    state["layers.0.0.wieght"] = state.pop("layers.0.0.weight")
    state["norm.bias"] = torch.zeros(17)
    state["layers.1.0.bias"] = state["layers.1.0.bias"].to(torch.complex64)
    path = save(state)
    model = allocated(seed=1)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(rustload.ModelMismatchError) as caught:
        load_into(model, path)
    error = caught.value
    assert isinstance(error, RuntimeError)  # as torch's own
    assert error.code == "ModelMismatch"
    assert error.missing == ["layers.0.0.weight"]
    assert error.unexpected == ["layers.0.0.wieght"]
    assert error.mismatched == [("layers.1.0.bias", "complex64", "float32"), ("norm.bias", (17,), (16,))]
    assert str(error).splitlines()[1:] == [
        "  missing: layers.0.0.weight [24, 16] (did you mean: layers.0.0.wieght)",
        "  unexpected: layers.0.0.wieght [24, 16]",
        "  mismatched: layers.1.0.bias is complex64 in the file and float32 in the model",
        "  mismatched: norm.bias is [17] in the file and [16] in the model",
    ]
    assert_equal(model, before)


def test_not_strict_loads_what_fits_and_reports_the_rest(save):
    state = dict(allocated().state_dict())
    del state["norm.weight"]
    state["norm.bias"] = torch.zeros(17)
    state["more"] = torch.zeros(1)
    path = save(state)
    model = allocated(seed=1)
    model.norm.weight.data.fill_(7)
    report = load_into(model, path, strict=False)
    assert (report.missing, report.unexpected) == (["norm.weight"], ["more"])
    assert report.mismatched == [("norm.bias", (17,), (16,))]
    assert_same_bits(model.layers[0][0].weight.detach(), state["layers.0.0.weight"])
    assert model.norm.weight.detach().eq(7).all()
    model = on_meta()
    assert load_into(model, path, strict=False).on_meta == ["scratch", "norm.weight", "norm.bias"]


@pytest.mark.parametrize("drop", [(), ("a.weight",), ("a.weight", "a.bias", "b.weight", "b.bias")])
@pytest.mark.parametrize("add", [(), ("c", "a.more")])
def test_missing_and_unexpected_names_equal_torchs(save, drop, add):
    model = torch.nn.ModuleDict({name: torch.nn.Linear(2, 2) for name in "ab"})
    state = {name: tensor for name, tensor in model.state_dict().items() if name not in drop}
    state |= {name: torch.zeros(1) for name in add} or {"a.bias": state.get("a.bias", torch.zeros(2))}
    path = save(state)
    expected = model.load_state_dict(state, strict=False)
    nothing_fits = state.keys().isdisjoint(model.state_dict())
    warning = pytest.warns(rustload.RustloadWarning) if nothing_fits else contextlib.nullcontext()
    with warning:
        report = load_into(model, path, strict=False)
    assert sorted(report.missing) == sorted(expected.missing_keys)
    assert sorted(report.unexpected) == sorted(expected.unexpected_keys)


@pytest.mark.parametrize("strict", [True, False])
def test_the_advice_names_every_prefix_that_fits(save, strict):
    state = allocated().state_dict()
    few = dict(list(state.items())[:2])
    path = save(
        {"state_dict": state, "state_dict_ema": state, "few": few, "optimizer": {"step": torch.ones(1)}}
    )
    model = allocated()
    with (
        pytest.raises(rustload.ModelMismatchError)
        if strict
        else pytest.warns(rustload.RustloadWarning) as caught
    ):
        load_into(model, path, strict=strict)
    text = "\n".join(caught.value.__notes__) if strict else str(caught[0].message)
    assert re.search(r"under 'state_dict' \((\d+) of \1\), 'state_dict_ema' \((\d+) of \2\): pass", text)
    assert "'few'" not in text
    assert "key='state_dict'" in text
    if not strict:
        assert caught[0].filename == __file__
        assert "nothing was loaded" in text


def test_many_missing_names_are_abbreviated_in_the_error(save):
    model = torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(100))
    with pytest.raises(rustload.ModelMismatchError, match=r"200 missing.*\n(.*\n)*.*and 192 more"):
        load_into(model, save({"x": torch.ones(1)}))


def test_a_lossy_cast_needs_allow_lossy(save):
    path = save({"n": torch.tensor([1.5, 2.5])})
    model = torch.nn.Module()
    model.register_buffer("n", torch.zeros(2, dtype=torch.int64))
    with pytest.raises(rustload.ModelMismatchError, match="n is float32 in the file and int64 in the model"):
        load_into(model, path, dtype="bfloat16")
    load_into(model, path, allow_lossy=True)
    assert model.n.tolist() == [1, 2]


def test_a_vector_of_one_element_in_an_old_file_fills_a_scalar(save):
    model = torch.nn.Module()
    model.s = torch.nn.Parameter(torch.zeros(()))
    load_into(model, save({"s": torch.tensor([4.0])}))
    assert model.s.item() == 4


def test_num_batches_tracked_is_zero_if_an_old_file_lacks_it(save):
    state = allocated().state_dict()
    del state["norm.num_batches_tracked"]
    path = save(state)
    model = on_meta()
    report = load_into(model, path)
    assert report.missing == []
    assert model.norm.num_batches_tracked.tolist() == 0


# Ties.


def test_one_of_two_tied_names_is_enough(save):
    state = allocated().state_dict()
    del state["head.weight"]
    path = save(state)
    for model in (allocated(seed=1), on_meta()):
        report = load_into(model, path)
        assert report.missing == []
        assert model.head.weight is model.embed.weight
        assert_same_bits(model.head.weight.detach(), state["embed.weight"])


def test_names_tied_in_the_file_become_one_parameter_of_a_meta_model(save):
    path = save(allocated().state_dict())
    model = on_meta(tied=False)
    report = load_into(model, path, dtype="bfloat16")
    assert model.head.weight is model.embed.weight
    assert report.tied == [["embed.weight", "head.weight"]]
    assert report.bytes < sum(tensor.nbytes for tensor in model.state_dict().values())


def test_allocated_parameters_are_not_tied_by_a_file(save):
    model = allocated(tied=False, seed=1)
    report = load_into(model, save(allocated().state_dict()))
    assert model.head.weight is not model.embed.weight
    assert report.tied == []
    assert_equal(model, allocated().state_dict())


@pytest.mark.parametrize("order", [1, -1])
def test_tied_parameters_of_two_dtypes_are_equal_if_neither_is_rounded(order, save):
    value = torch.randn(4, 4)
    for narrow, wide in ((value.bfloat16(), value.bfloat16().float()), (value.bfloat16(), value)):
        path = save(dict(zip("ab", (narrow, wide)[::order], strict=True)))
        for dtype in (None, "bfloat16"):
            model = torch.nn.ParameterDict({"a": torch.nn.Parameter(torch.zeros(4, 4))})
            model["b"] = model["a"]
            if wide is value and dtype is None:
                with pytest.raises(ValueError, match="'a' and 'b' differ in the file"):
                    rustload.torch.load_into(model, path, assign=True)
                continue
            rustload.torch.load_into(model, path, assign=True, dtype=dtype)
            assert model["a"] is model["b"]
            assert torch.equal(model["a"].bfloat16(), narrow)


def test_tied_parameters_accept_two_equal_tensors_and_refuse_different_ones(save):
    state = {name: tensor.clone() for name, tensor in allocated().state_dict().items()}
    state["embed.weight"][0, 0] = state["head.weight"][0, 0] = float("nan")
    load_into(on_meta(), save(state))
    state["head.weight"][39, 15] += 1
    with pytest.raises(ValueError, match=r"'embed\.weight' and 'head\.weight' differ in the file"):
        load_into(on_meta(), save(state))
    load_into(on_meta(), save(state), rename={"head.weight": None})


# Devices.


def test_a_device_map_is_read_as_accelerate_writes_it(file):
    model = on_meta()
    load_into(model, file, device_map={"": "cpu", "layers.1": torch.device("cpu")})
    assert_equal(model, allocated().state_dict())


@pytest.mark.parametrize("first", ["", "layers.1"])
def test_the_longest_name_in_a_device_map_wins(first):
    """In any order of the entries."""
    where = {"": "meta", "layers": "cpu", "layers.1": "meta", "layers.1.0.bias": "cpu"}
    model = allocated(seed=1)
    chosen = device_rule(None, {first: where[first], **where})
    found = {name: chosen(slot).type for slot in slots_of(model) for name in slot.names}
    for name, device in found.items():
        short = [known for known in where if known in ("", name) or name.startswith(known + ".")]
        assert device == where[max(short, key=len)], name
    assert (found["layers.1.0.bias"], found["layers.1.0.weight"]) == ("cpu", "meta")
    assert (found["layers.0.1.weight"], found["norm.weight"]) == ("cpu", "meta")


def test_an_invalid_device_map_is_refused(file):
    with pytest.raises(ValueError, match="on disk") as caught:
        load_into(on_meta(), file, device_map={"": "cpu", "layers.1": "disk"})
    assert "weights_map=rustload.torch.state_dict(path)" in caught.value.__notes__[0]
    with pytest.raises(ValueError, match=r"says nothing of 'norm\.weight'"):
        load_into(on_meta(), file, device_map={"embed": "cpu", "layers": "cpu", "head": "cpu"})
    with pytest.raises(ValueError, match="is a mapping from modules to devices, not 'auto'") as caught:
        load_into(on_meta(), file, device_map="auto")
    assert "infer_auto_device_map" in caught.value.__notes__[0]
    with pytest.raises(ValueError, match="both"):
        load_into(on_meta(), file, device_map={"": "cpu"}, device="cpu")


def test_a_missing_gpu_is_a_device_error(file):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    for options in ({"device": "cuda:0"}, {"device_map": {"": 0}}):
        with pytest.raises(rustload.DeviceError, match="cuda:0"):
            load_into(on_meta(), file, **options)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("start", [allocated, on_meta, lambda: allocated(seed=1).cuda()])
def test_a_model_is_loaded_onto_the_gpu(file, start):
    model = start()
    report = load_into(model, file, dtype="bfloat16", device_map={"": 0})
    assert {tensor.device.type for tensor in model.state_dict().values()} == {"cuda"}
    assert_equal(model.cpu(), allocated().state_dict(), torch.bfloat16)
    assert report.peak_device >= report.bytes


# Other options.


def test_assign_false_writes_in_place_or_not_at_all(file):
    with pytest.raises(ValueError, match=r"'embed\.weight' is float32 on meta"):
        load_into(on_meta(), file, assign=False)
    with pytest.raises(ValueError, match="not bfloat16"):
        load_into(allocated(), file, assign=False, dtype="bf16")
    load_into(allocated(), file, assign=False)


@pytest.mark.parametrize(("options", "says"), [
    ({"assign": "yes"}, "assign="), ({"memory": "lots"}, "memory="), ({"memory": -1}, "memory="),
    ({"dtype": "float33"}, "float33"),
])  # fmt: skip
def test_wrong_arguments_are_value_errors(file, options, says):
    with pytest.raises(ValueError, match=says):
        load_into(allocated(), file, **options)


def test_progress_counts_bytes_of_the_result(file):
    calls = []
    report = load_into(on_meta(), file, dtype="bf16", progress=lambda *call: calls.append(call))
    assert calls[-1][0] == calls[-1][1] == report.bytes
    assert {name for _, _, name in calls} >= {"embed.weight", "norm.num_batches_tracked"}
    with pytest.raises(TypeError, match="progress="):
        load_into(on_meta(), file, progress=3)


def test_an_open_checkpoint_is_accepted(file):
    model = on_meta()
    with rustload.open(file, framework="numpy") as ckpt:
        load_into(model, ckpt)
    assert_equal(model, allocated().state_dict())


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_lazy_module_takes_the_files_shapes(save, device):
    expected = torch.nn.Linear(5, 3)
    model = torch.nn.LazyLinear(3, device=device)
    load_into(model, save(expected.state_dict()))
    assert_same_bits(model.weight.detach(), expected.weight.detach())
    assert model(torch.ones(5)).shape == (3,)


class Counting(torch.nn.Linear):
    def get_extra_state(self):
        return {"count": 3}

    def set_extra_state(self, state):
        self.extra = state


def test_extra_state_is_passed_to_set_extra_state(save):
    path = save({"model": OrderedDict(torch.nn.Sequential(Counting(2, 2)).state_dict())})
    model = torch.nn.Sequential(Counting(2, 2))
    load_into(model, path, key="model")
    assert model[0].extra == {"count": 3}
    with pytest.raises(rustload.ModelMismatchError, match=r"1 missing.*\n.*_extra_state"):
        load_into(model, save(torch.nn.Sequential(torch.nn.Linear(2, 2)).state_dict()))


@pytest.mark.parametrize(
    ("key", "strip", "rename"),
    [
        ("saved", "module.", None),
        ("saved.", ["module"], None),
        (("saved",), None, {"module": ""}),
        ("saved", None, [(r"^module\.", "")]),
        ("saved", None, lambda name: name.removeprefix("module.")),
    ],
)
def test_extra_state_is_found_below_a_key_and_under_another_name(save, key, strip, rename):
    state = torch.nn.Sequential(Counting(2, 2)).state_dict()
    path = save({"saved": {f"module.{name}": value for name, value in state.items()}})
    model = torch.nn.Sequential(Counting(2, 2))
    report = load_into(model, path, key=key, strip=strip, rename=rename)
    assert model[0].extra == {"count": 3}
    assert (report.missing, report.unexpected) == ([], [])


@pytest.mark.parametrize("strict", [True, False])
def test_extra_state_may_have_tensors(save, strict):
    given = {"count": 3, "history": [torch.arange(3), (torch.ones(2, 2), None)]}
    source = torch.nn.Sequential(Counting(2, 2))
    source[0].get_extra_state = lambda: given
    path = save(source.state_dict())
    model = torch.nn.Sequential(Counting(2, 2))
    report = load_into(model, path, strict=strict)
    path.write_bytes(b"")
    (first, (second, none)), count = model[0].extra["history"], model[0].extra["count"]
    assert_same_bits(first, torch.arange(3))
    assert_same_bits(second, torch.ones(2, 2))
    assert (none, count, report.missing, report.unexpected) == (None, 3, [], [])


def test_extra_state_of_a_module_with_two_names_is_expected_under_both(save):
    model = torch.nn.Sequential(*[Counting(2, 2)] * 2)
    model[0].get_extra_state = lambda: {"count": 3, "sum": torch.ones(2)}
    report = load_into(model, save(model.state_dict()))
    assert model[1].extra["count"] == 3
    assert (report.missing, report.unexpected) == ([], [])


def test_an_error_while_loading_has_a_note_with_the_tensor(save):
    path = save(allocated().state_dict())
    ckpt = rustload.open(path)
    path.write_bytes(path.read_bytes()[:-3000])
    with pytest.raises(rustload.FormatError) as caught:
        load_into(on_meta(), ckpt, dtype="bf16")
    assert any("while loading" in note for note in caught.value.__notes__)


def test_a_parameter_whose_dtype_changes_loses_its_gradient(file):
    model = allocated()
    model.head.weight.grad = torch.ones_like(model.head.weight)
    load_into(model, file, dtype="bf16")
    assert model.head.weight.grad is None


# Peak memory.

PEAK = """
import sys
import torch, rustload.torch
from process_memory import Peak
path, start = sys.argv[1:3]
torch.set_num_threads(2)
with torch.device("meta"):
    model = torch.nn.ModuleDict({f"t{n}": torch.nn.Linear(2048, 3072, bias=False) for n in range(12)})
if start != "meta":
    model = model.to_empty(device="cpu")
    [parameter.data.zero_() for parameter in model.parameters()]
peak = Peak()
report = rustload.torch.load_into(model, path, OPTIONS)
found, _ = peak.stop()
assert all(float(p.detach()[0, 0]) == n for n, p in enumerate(model.parameters()))
print(found, report.peak_host >> 20, report.bytes >> 20)
"""


@pytest.fixture(scope="module", params=["bin", "legacy"])
def large(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "model.bin"
    state = {f"t{n}.weight": torch.full((3072, 2048), float(n)) for n in range(12)}  # 288 MiB
    torch.save(state, path, _use_new_zipfile_serialization=request.param == "bin")
    yield path
    path.unlink()


@pytest.mark.parametrize(("start", "options", "final"), [
    ("meta", "dtype='bfloat16'", 144), ("meta", "copy=True", 288), ("cpu", "", 0), ("meta", "dtype='float8_e4m3fn'", 72),
])  # fmt: skip
def test_the_peak_memory_is_close_to_the_final_size(large, start, options, final):
    peak, reported, nbytes = map(
        int, torch_child(PEAK.replace("OPTIONS", options), large, start).stdout.split()
    )
    assert peak <= final + 40
    assert abs(peak - reported) <= 24
    assert nbytes == (final or 288)


LIMITED = """
import sys
import torch, rustload.torch
path, way = sys.argv[1:3]
with torch.device("meta"):
    model = torch.nn.ModuleDict({f"t{n}": torch.nn.Linear(2048, 3072, bias=False) for n in range(12)})
WAIT  # the imports are charged to another group
if way == "torch":
    model.load_state_dict(torch.load(path), assign=True)
    model.bfloat16()
else:
    rustload.torch.load_into(model, path, dtype="bfloat16")
print("finished")
""".replace("WAIT", WAIT)


def test_a_load_fits_a_memory_limit_that_kills_torch_load(large):
    assert limited_child((144 + 64) << 20, LIMITED, large, "rustload").stdout == "finished\n"
    killed = limited_child((144 + 64) << 20, LIMITED, large, "torch")
    assert (killed.returncode, killed.stdout) == (-9, "")


@pytest.mark.parametrize("kind", ["conjugate", "negative"])
def test_a_lazy_conjugate_or_negative_is_not_tied_with_what_it_is_of(kind, tmp_path):
    whole = torch.randn(3, 4, dtype=torch.complex64)
    pair = (whole, whole.conj()) if kind == "conjugate" else (whole.imag, whole.conj().imag)
    torch.save(dict(zip("ab", pair, strict=True)), tmp_path / "m.pt")
    with torch.device("meta"):
        model = torch.nn.ParameterDict({name: torch.nn.Parameter(torch.empty_like(pair[0])) for name in "ab"})
    assert rustload.torch.load_into(model, tmp_path / "m.pt").tied == []
    for name, one in zip("ab", pair, strict=True):
        assert torch.equal(model[name].detach(), one.clone().resolve_conj().resolve_neg())
    lazy = rustload.open(tmp_path / "m.pt")
    assert lazy["a"] != lazy["b"]
    assert len({lazy["a"], lazy["b"]}) == 2
