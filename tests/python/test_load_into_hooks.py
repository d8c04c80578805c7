"""`load_into` runs a model's own loading code with the effect that it has in `Module.load_state_dict`, the oracle."""

import warnings
from collections import OrderedDict

import pytest
import torch
import torch.nn.utils.prune
from support import assert_same_bits

import rustload
from rustload.torch import load_into, state_dict

STARTS = ("memory", "meta")


class Renaming(torch.nn.Linear):
    """Reads files in which its weight had another name and was transposed."""

    def _load_from_state_dict(self, state_dict, prefix, *rest):
        old = prefix + "kernel"
        if old in state_dict:
            state_dict[prefix + "weight"] = state_dict.pop(old).t()
        super()._load_from_state_dict(state_dict, prefix, *rest)


class Computing(torch.nn.Linear):
    """Concatenates its weight from two tensors, and fills in the bias that old files lack."""

    def _load_from_state_dict(self, state_dict, prefix, metadata, *rest):
        if prefix + "up" in state_dict:
            state_dict[prefix + "weight"] = torch.cat(
                [state_dict.pop(prefix + "up"), state_dict.pop(prefix + "down")]
            )
        state_dict.setdefault(prefix + "bias", torch.full((4,), 0.5))
        super()._load_from_state_dict(state_dict, prefix, metadata, *rest)


class Counting(torch.nn.Linear):
    """Saves a number and a list beside its tensors."""

    bits, sizes = 0, ()

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "bits"], destination[prefix + "sizes"] = self.bits, self.sizes

    def _load_from_state_dict(self, state_dict, prefix, *rest):
        self.bits, self.sizes = state_dict.pop(prefix + "bits"), state_dict.pop(prefix + "sizes")
        super()._load_from_state_dict(state_dict, prefix, *rest)


class Growing(torch.nn.Module):
    """Takes the size of a buffer from the file."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.zeros(1, 2))

    def _load_from_state_dict(self, state_dict, prefix, *rest):
        self.table = self.table.new_zeros(state_dict[prefix + "table"].shape)
        super()._load_from_state_dict(state_dict, prefix, *rest)


class Forgiving(torch.nn.Linear):
    """Does not require its bias in the file, and removes a name that it does not use."""

    def _load_from_state_dict(self, state_dict, prefix, metadata, strict, missing, unexpected, errors):
        state_dict.pop(prefix + "unused", None)
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, unexpected, errors)
        if prefix + "bias" in missing:
            missing.remove(prefix + "bias")


def hooked():
    """A public pre-hook on the parent of what it renames, and a pre-hook of the older private method."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))

    def rename(_module, state_dict, prefix, *_):
        for name in [name for name in state_dict if name.startswith(prefix + "layer")]:
            state_dict[prefix + name.removeprefix(prefix + "layer")] = state_dict.pop(name)

    def scale(state_dict, prefix, *_):
        state_dict[prefix + "bias"] = state_dict[prefix + "bias"] * 2

    model.register_load_state_dict_pre_hook(rename)
    model[1]._register_load_state_dict_pre_hook(scale)
    return model


def weight_norm(*, new: bool):
    apply = torch.nn.utils.parametrizations.weight_norm if new else torch.nn.utils.weight_norm
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the older one is deprecated
        return torch.nn.Sequential(apply(torch.nn.Linear(3, 4)), torch.nn.BatchNorm1d(4))


def r(*shape):
    return torch.randn(*shape)


CASES = {
    "renamed and transposed": (lambda: torch.nn.Sequential(Renaming(3, 4)), lambda: {"0.kernel": r(3, 4), "0.bias": r(4)}),
    "its own names": (lambda: torch.nn.Sequential(Renaming(3, 4)), lambda: {"0.weight": r(4, 3), "0.bias": r(4)}),
    "computed": (lambda: torch.nn.ModuleDict({"a": Computing(3, 4)}), lambda: {"a.up": r(1, 3), "a.down": r(3, 3)}),
    "grown": (lambda: torch.nn.ModuleDict({"g": Growing()}), lambda: {"g.table": r(5, 7)}),
    "taken": (lambda: torch.nn.Sequential(Forgiving(2, 2, bias=False)), lambda: {"0.weight": r(2, 2), "0.unused": r(1)}),
    "hooks": (hooked, lambda: {"layer0.weight": r(4, 3), "layer0.bias": r(4), "layer1.weight": r(2, 4), "layer1.bias": r(2)}),
    "weight norm": (lambda: weight_norm(new=True), lambda: weight_norm(new=True).state_dict()),
    "weight norm of old files": (lambda: weight_norm(new=True), lambda: weight_norm(new=False).state_dict()),
    "weight norm of old": (lambda: weight_norm(new=False), lambda: weight_norm(new=False).state_dict()),
    "spectral norm": (
        lambda: torch.nn.Sequential(torch.nn.utils.spectral_norm(torch.nn.Linear(3, 4))),
        lambda: torch.nn.utils.spectral_norm(torch.nn.Linear(3, 4)).state_dict(prefix="0."),
    ),
    "parametrized": (
        lambda: torch.nn.utils.parametrizations.orthogonal(torch.nn.Linear(3, 3)),
        lambda: torch.nn.utils.parametrizations.orthogonal(torch.nn.Linear(3, 3)).state_dict(),
    ),
    "pruned": (
        lambda: torch.nn.utils.prune.random_unstructured(torch.nn.Linear(3, 3), "weight", 0.5),
        lambda: torch.nn.utils.prune.random_unstructured(torch.nn.Linear(3, 3), "weight", 0.5).state_dict(),
    ),
    "lazy beside hooks": (
        lambda: torch.nn.ModuleDict({"l": torch.nn.LazyLinear(4), "r": Renaming(3, 4)}),
        lambda: {"l.weight": r(4, 6), "l.bias": r(4), "r.kernel": r(3, 4), "r.bias": r(4)},
    ),
}  # fmt: skip


def built(build, start):
    model = build()
    if start == "memory":
        return model
    if not any(torch.nn.parameter.is_lazy(parameter) for parameter in model.parameters()):
        return model.to("meta")
    with torch.device("meta"):
        return build()


def assert_like(found, expected, dtype=None):
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        wanted = tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor
        assert_same_bits(found[name].detach(), wanted.detach())


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_loading_code_has_the_effect_of_load_state_dict(save, case, start, dtype):
    build, file = CASES[case]
    torch.manual_seed(0)
    path = save(file())
    expected = build()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected.load_state_dict(torch.load(path))
    model = built(build, start)
    load_into(model, path, dtype=dtype)
    assert_like(model.state_dict(), expected.state_dict(), dtype)
    assert not any(tensor.is_meta for tensor in model.state_dict().values())
    if dtype is None and "norm" in case and "spectral" not in case:
        assert torch.equal(model.eval()(torch.ones(2, 3)), expected.eval()(torch.ones(2, 3)))
    if "weight norm" not in case:  # those compute with tensors that have no memory yet
        lazily = build()
        lazily.load_state_dict(state_dict(path))
        assert_like(lazily.state_dict(), expected.state_dict())


@pytest.mark.parametrize("start", STARTS)
def test_forward_hooks_are_not_called(save, start):
    calls = []
    model = built(lambda: torch.nn.Sequential(torch.nn.Linear(2, 2)), start)
    model.register_forward_hook(lambda *_: calls.append("after"))
    model[0].register_forward_pre_hook(lambda *_: calls.append("before"))
    report = load_into(model, save(torch.nn.Sequential(torch.nn.Linear(2, 2)).state_dict()))
    assert (calls, report.notes) == ([], [])
    model(torch.ones(1, 2))
    assert calls == ["before", "after"]


def test_a_renamed_and_transposed_tensor_stays_a_view(save):
    value = r(3, 4)
    path = save({"0.kernel": value, "0.bias": r(4)})
    model = built(lambda: torch.nn.Sequential(Renaming(3, 4)), "meta")
    report = load_into(model, path)
    assert report.notes == ["the loading code of Renaming itself was run"]
    assert model[0].weight.stride() == (1, 4)  # a transposed view of the file's elements
    assert report.missing == report.unexpected == report.on_meta == []


def test_transpose_and_dtype_rules_match_names_of_the_file(save):
    value = r(3, 4)
    path = save({"0.kernel": value.t().contiguous(), "0.bias": r(4)})
    model = torch.nn.Sequential(Renaming(3, 4))
    load_into(model, path, transpose={"0.kernel": True}, dtype={"0.kernel": "float16"})
    assert_same_bits(model[0].weight.detach(), value.t().half())
    assert model[0].bias.dtype == torch.float32


def test_all_mismatches_are_in_one_error_and_nothing_is_changed(save):
    path = save({"a.up": r(1, 3), "a.down": r(9, 3), "b.weight": r(5, 5), "c.x": r(1), "b.y": r(2)})
    model = torch.nn.ModuleDict({"a": Computing(3, 4), "b": Renaming(5, 5)})
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(rustload.ModelMismatchError) as caught:
        load_into(model, path)
    assert str(caught.value).splitlines()[1:] == [
        "  missing: b.bias [5]",
        "  unexpected: c.x [1]",
        "  unexpected: b.y [2]",
        "  mismatched: a.weight is [10, 3] in the file and [4, 3] in the model",
    ]
    assert_like(model.state_dict(), before)
    report = load_into(model, path, strict=False)
    assert (report.missing, sorted(report.unexpected)) == (["b.bias"], ["b.y", "c.x"])
    assert report.mismatched == [("a.weight", (10, 3), (4, 3))]
    assert_same_bits(model["a"].bias.detach(), torch.full((4,), 0.5))


def test_a_parameter_that_loading_code_does_not_require_is_unchanged(save):
    path = save({"0.weight": r(2, 2)})
    model = torch.nn.Sequential(Forgiving(2, 2))
    bias = model[0].bias.detach().clone()
    assert load_into(model, path).missing == []
    assert_same_bits(model[0].bias.detach(), bias)
    with pytest.raises(
        rustload.ModelMismatchError, match="1 missing"
    ):  # on meta it would stay without memory
        load_into(built(lambda: torch.nn.Sequential(Forgiving(2, 2)), "meta"), path)


def test_messages_and_exceptions_of_loading_code_propagate(save):
    class Refusing(torch.nn.Linear):
        def _load_from_state_dict(self, *rest):
            rest[-1].append("this file is of a model that has not been released")

    class Failing(torch.nn.Linear):
        def _load_from_state_dict(self, state_dict, *_):
            return state_dict["nothing"]

    path = save(torch.nn.Linear(2, 2).state_dict())
    for strict in (True, False):
        with pytest.raises(rustload.ModelMismatchError, match="1 refused by the model's own code") as caught:
            load_into(Refusing(2, 2), path, strict=strict)
        assert "Refusing: this file is of a model that has not been released" in str(caught.value)
    with pytest.raises(KeyError, match="nothing") as failed:
        load_into(Failing(2, 2), path)
    assert "in the loading code of" in failed.value.__notes__[0]
    assert "Failing" in failed.value.__notes__[0]


@pytest.mark.parametrize("start", STARTS)
def test_post_hooks_see_the_loaded_values_and_may_clear_names(save, start):
    state = torch.nn.Sequential(torch.nn.Linear(2, 2)).state_dict()
    path = save({"0.weight": state["0.weight"], "0.extra": r(1), "other": r(1)})
    model = built(lambda: torch.nn.Sequential(torch.nn.Linear(2, 2)), start)
    seen = []

    def forgive(module, keys):
        assert not module.weight.is_meta
        seen.append((module.weight.detach().clone(), list(keys.missing_keys), list(keys.unexpected_keys)))
        keys.missing_keys.clear()
        keys.unexpected_keys.remove("0.extra")

    model[0].register_load_state_dict_post_hook(forgive)
    with pytest.raises(
        rustload.ModelMismatchError, match="1 unexpected; the parameters that fit were changed"
    ) as caught:
        load_into(model, path)
    assert (caught.value.missing, caught.value.unexpected) == ([], ["other"])
    report = load_into(model, path, rename={"other": None})
    assert (report.missing, report.unexpected) == ([], [])
    assert_same_bits(seen[0][0], state["0.weight"])
    assert seen[0][1:] == (["0.bias"], ["other", "0.extra"])
    model[0].register_load_state_dict_post_hook(lambda *_: 3)
    with pytest.raises(TypeError, match="gave a value"):
        load_into(model, path, rename={"other": None})


def test_a_post_hook_hides_no_names_of_later_modules(save):
    path = save({"0.weight": r(2, 2), "2.weight": r(2, 2), "2.more": r(1)})
    built, found = ([torch.nn.Linear(2, 2) for _ in range(3)] for _ in range(2))

    def forgive(_module, keys):
        keys.missing_keys.clear()
        keys.unexpected_keys.clear()

    for layers in (built, found):
        layers[1].register_load_state_dict_post_hook(forgive)
    expected = torch.nn.Sequential(*built).load_state_dict(torch.load(path), strict=False)
    report = load_into(torch.nn.Sequential(*found), path, strict=False)
    assert (report.missing, report.unexpected) == (["2.bias"], ["2.more"])
    assert (expected.missing_keys, expected.unexpected_keys) == (report.missing, report.unexpected)
    with pytest.raises(rustload.ModelMismatchError, match="1 missing, 1 unexpected"):
        load_into(torch.nn.Sequential(*found), path)


@pytest.mark.parametrize(("key", "rename"), [(None, {"model.": ""}), ("model", None)])
def test_loading_code_gets_values_that_are_not_tensors(save, key, rename):
    source = torch.nn.Sequential(Counting(2, 2), torch.nn.Linear(2, 2))
    source[0].bits, source[0].sizes = 4, [2, (None, "x")]
    state = source.state_dict() | {"1.note": 3, "1.moment": [torch.ones(2)]}
    flat = {f"model.{name}": value for name, value in state.items()}
    path = save({"epoch": 3, **flat} if key is None else {"epoch": 3, "model": state})
    model = torch.nn.Sequential(Counting(2, 2), torch.nn.Linear(2, 2))
    report = load_into(model, path, key=key, rename=rename, strict=False)
    assert (model[0].bits, model[0].sizes) == (4, [2, (None, "x")])
    assert (report.missing, report.unexpected) == ([], ["1.moment.0"])
    assert_same_bits(model[1].weight.detach(), source[1].weight.detach())


def test_versions_of_modules_are_those_that_were_saved(save):
    seen = []

    class Versioned(torch.nn.Linear):
        _version = 7

        def _load_from_state_dict(self, state_dict, prefix, metadata, *rest):
            seen.append(metadata.get("version"))
            super()._load_from_state_dict(state_dict, prefix, metadata, *rest)

    plain = torch.nn.Sequential(Versioned(2, 2)).state_dict()
    path = save({"run": {"model": plain}, "loose": dict(plain)})
    for key, strip in (("run.model", None), (("run", "model"), None), ("loose", None), ("run", "model.")):
        load_into(torch.nn.Sequential(Versioned(2, 2)), path, key=key, strip=strip)
    torch.nn.Sequential(Versioned(2, 2)).load_state_dict(state_dict(path, key="run.model"))
    load_into(
        torch.nn.Sequential(Versioned(2, 2)), save({k: v.clone() for k, v in plain.items()}, "x.safetensors")
    )
    assert seen == [7, 7, None, None, 7, None]
    assert state_dict(path, key="run.model")._metadata == OrderedDict(plain._metadata)


def test_the_swap_module_params_setting_is_unchanged(save):
    path = save({"0.kernel": r(3, 4), "0.bias": r(4)})
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model = torch.nn.Sequential(Renaming(3, 4))
        load_into(model, path)
        assert torch.__future__.get_swap_module_params_on_conversion()
        assert_same_bits(model[0].weight.detach(), torch.load(path)["0.kernel"].t())
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def test_an_overridden_load_state_dict_is_noted_and_not_called(save):
    class Whole(torch.nn.Linear):
        def load_state_dict(self, *_args, **_kwargs):
            raise AssertionError("was called")

    report = load_into(Whole(2, 2), save(torch.nn.Linear(2, 2).state_dict()))
    assert any(
        "Whole has a load_state_dict of its own, which was not called" in note for note in report.notes
    )


class _Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.other = (torch.nn.Parameter(torch.zeros(2, 3)) for _ in range(2))
        self.register_buffer("cache", torch.zeros(6), persistent=False)


class _ScaledAfter(_Own):
    def _load_from_state_dict(self, state_dict, prefix, *rest):
        super()._load_from_state_dict(state_dict, prefix, *rest)
        with torch.no_grad():
            self.weight.mul_(2)
            self.other.data += 1


class _CachedAfter(_Own):
    def _load_from_state_dict(self, state_dict, prefix, *rest):
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self.cache = torch.cat([self.weight.detach(), self.other.detach()]).sum(1)


class _SumOfTwo(_Own):
    def _load_from_state_dict(self, state_dict, prefix, *_):
        with torch.no_grad():
            self.weight.copy_(state_dict[prefix + "weight"])
            self.weight.add_(state_dict[prefix + "other"])
            self.other.copy_(state_dict[prefix + "other"])


class _OneBufferForAll(_Own):
    def _load_from_state_dict(self, state_dict, prefix, *_):
        buffer = torch.empty(2, 3)
        with torch.no_grad():
            for name in ("weight", "other"):
                buffer.copy_(state_dict[prefix + name])
                getattr(self, name).copy_(buffer)


class _Assigned(_Own):
    """Assigns what it gets, as torch's observers do with a buffer, and torchmetrics with an attribute."""

    def _load_from_state_dict(self, state_dict, prefix, *rest):
        self.cache = state_dict[prefix + "weight"]
        self.note = state_dict.pop(prefix + "other")
        with torch.no_grad():
            self.other.copy_(self.note)
        state_dict[prefix + "other"] = self.other
        super()._load_from_state_dict(state_dict, prefix, *rest)


class _Replaced(_Own):
    def _load_from_state_dict(self, *rest):
        super()._load_from_state_dict(*rest)
        self.weight = torch.nn.Parameter(torch.full((2, 3), 9.0))


class _Removed(_Own):
    def _load_from_state_dict(self, *rest):
        super()._load_from_state_dict(*rest)
        self.weight = None


class _Swapped(_Own):
    def _load_from_state_dict(self, *rest):
        super()._load_from_state_dict(*rest)
        self.weight, self.other = self.other, torch.nn.Parameter(self.weight)


class _ThroughAnEarlierAlias(_Own):
    def _load_from_state_dict(self, *rest):
        flat = self.weight.data.view(-1)
        super()._load_from_state_dict(*rest)
        flat[:4] = 7


class _CopiedTwice(_Own):
    def _load_from_state_dict(self, *rest):
        super()._load_from_state_dict(*rest)
        with torch.no_grad():
            self.weight.data.copy_(self.other)
            self.other.requires_grad = False


class _CopiedFromEachOther(_Own):
    def _load_from_state_dict(self, state_dict, prefix, *_):
        with torch.no_grad():
            self.weight.fill_(5)
            self.other.copy_(self.weight)
            self.cache.copy_(state_dict[prefix + "weight"].view(-1))
            self.weight.copy_(state_dict[prefix + "weight"])


REPLACING = [_Replaced, _Removed, _Swapped, _CopiedTwice]


@pytest.mark.parametrize(
    "kind",
    [
        _ScaledAfter,
        _CachedAfter,
        _SumOfTwo,
        _OneBufferForAll,
        _Assigned,
        _ThroughAnEarlierAlias,
        _CopiedFromEachOther,
        *REPLACING,
    ],
)
def test_code_that_goes_on_with_what_it_copied_has_the_result_of_torch(kind, tmp_path):
    state = {"weight": torch.arange(6.0).reshape(2, 3), "other": torch.arange(6.0, 12).reshape(2, 3)}
    torch.save(state, tmp_path / "m.pt")
    expected, found = kind(), kind()
    expected.load_state_dict(dict(state))
    rustload.torch.load_into(found, tmp_path / "m.pt")
    assert_same(found, expected)


def assert_same(found, expected):
    for name in ("weight", "other", "cache", "note"):
        one, other = (getattr(module, name, None) for module in (found, expected))
        assert type(one) is type(other), name
        assert one is None or (one.is_meta and name == "cache") or torch.equal(one, other), name


@pytest.mark.parametrize("kind", REPLACING)
def test_copies_into_meta_tensors_follow_the_tensors(kind, tmp_path):
    state = {"weight": torch.arange(6.0).reshape(2, 3), "other": torch.arange(6.0, 12).reshape(2, 3)}
    torch.save(state, tmp_path / "m.pt")
    expected = kind()
    expected.load_state_dict(dict(state))
    with torch.device("meta"):
        found = kind()
    rustload.torch.load_into(found, tmp_path / "m.pt")
    assert_same(found, expected)


CHANGES = {
    "data": lambda model: model.weight.data.mul_(2),
    "row": lambda model: model.weight[0].zero_(),
    "chunk": lambda model: [part.mul_(2) for part in model.weight.chunk(2)],
    "item": lambda model: model.weight.data.__setitem__(0, 7),
    "list": lambda model: torch._foreach_mul_([model.weight.data], 2.0),
    "out": lambda model: torch.add(torch.ones(2, 3), 1, out=model.weight.data),
    "set": lambda model: setattr(model.weight, "data", torch.ones(2, 3)),
    "through": lambda model: model.other.data.add_(1),
}


@pytest.mark.parametrize("how", CHANGES)
def test_changing_a_meta_tensor_after_its_copy_is_an_error(how, tmp_path):
    class Changed(_Own):
        def _load_from_state_dict(self, *rest):
            super()._load_from_state_dict(*rest)
            with torch.no_grad():
                CHANGES[how](self)

    torch.save({"weight": torch.ones(2, 3), "other": torch.ones(2, 3)}, tmp_path / "m.pt")
    with torch.device("meta"):
        model = Changed()
    with pytest.raises(rustload.UnsupportedError, match=r"changes '(weight|other)' after it is copied"):
        rustload.torch.load_into(model, tmp_path / "m.pt")


def test_an_error_names_the_tensors_that_the_models_own_code_used(tmp_path):
    model = torch.nn.ModuleDict({"scaled": _ScaledAfter(), "plain": torch.nn.Linear(2, 2, bias=False)})
    state = {
        "scaled.weight": torch.ones(2, 3),
        "scaled.other": torch.ones(2, 3),
        "plain.weight": torch.ones(9),
    }
    torch.save(state, tmp_path / "m.pt")
    with pytest.raises(
        rustload.ModelMismatchError, match=r"nothing was loaded but scaled\.weight, scaled\.other, which"
    ):
        rustload.torch.load_into(model, tmp_path / "m.pt")


@pytest.mark.parametrize("build", [
    lambda: torch.ao.nn.quantized.Linear(4, 3), lambda: torch.ao.nn.quantized.Conv2d(2, 3, 2),
    lambda: torch.ao.nn.quantized.dynamic.Linear(4, 3),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore")  # torch deprecates them
def test_an_error_of_a_quantized_module_says_what_loads_it(build, save):
    path = save(build().state_dict())
    with pytest.raises((KeyError, rustload.UnsupportedError)) as caught:
        load_into(build(), path)
    assert "rustload.torch.load(path)" in caught.value.__notes__[-1]
    found, expected = build(), build()
    found.load_state_dict(rustload.torch.load(path))
    expected.load_state_dict(torch.load(path))
    assert torch.equal(found.weight().int_repr(), expected.weight().int_repr())


class _Metric(torch.nn.Module):
    """Keeps its state in attributes, and hashes its elements, as torchmetrics do."""

    def __init__(self):
        super().__init__()
        self.total = torch.zeros(())

    def __hash__(self):
        return hash(tuple(self.total) if not isinstance(self.total, torch.Tensor) else id(self.total))

    def _load_from_state_dict(self, state_dict, prefix, *rest):
        self.total = state_dict.pop(prefix + "total")
        super()._load_from_state_dict(state_dict, prefix, *rest)


def test_state_without_dimensions_that_code_assigns_becomes_a_tensor(tmp_path):
    torch.save({"metric.total": torch.tensor(3.0), "rest.weight": torch.ones(2, 2)}, tmp_path / "m.pt")
    model = torch.nn.ModuleDict({"metric": _Metric(), "rest": torch.nn.Linear(2, 2, bias=False)})
    rustload.torch.load_into(model, tmp_path / "m.pt")
    assert type(model["metric"].total) is torch.Tensor
    assert model["metric"].total == 3
