"""Views of a checkpoint (`select`, `under`, `strip`, `rename`), and `names=`, `key=`, `strip=` and `rename=` of many tensors."""

import json
import pickle

import numpy as np
import pytest
import torch
from support import assert_same_bits

import rustload
import rustload.torch
from rustload import RustloadWarning, Selection

STATE = {
    "epoch": 3,
    "state_dict": {
        "module.enc.0.weight": torch.arange(12.0).reshape(3, 4),
        "module.enc.0.bias": torch.arange(3.0),
        "module.enc.1.weight": torch.arange(12.0, 24.0).reshape(3, 4),
        "module.enc.1.bias": torch.arange(3.0, 6.0),
        "module.head.weight": torch.ones(2, 3, dtype=torch.float16),
    },
    "ema": {"enc.0.weight": torch.zeros(3, 4)},
}
MODULE = "state_dict.module."


@pytest.fixture
def path(save):
    return save(STATE)


@pytest.fixture
def ckpt(path):
    return rustload.open(path)


def expected(*names):
    return {name: STATE["state_dict"]["module." + name] for name in names}


def assert_equal(found, wanted):
    assert list(found) == list(wanted)
    for name, tensor in wanted.items():
        assert_same_bits(found[name], tensor)


def test_a_selection_is_a_mapping_of_the_handles_in_the_files_order(ckpt):
    chosen = ckpt.select("*.weight")
    assert isinstance(chosen, Selection)
    assert list(chosen) == [name for name in ckpt if name.endswith(".weight")]
    assert len(chosen) == 4
    assert [lazy.name for lazy in chosen.values()] == list(chosen)
    assert dict(chosen).keys() == chosen.keys()
    assert MODULE + "enc.0.weight" in chosen
    assert MODULE + "enc.0.bias" not in chosen
    assert chosen.get(MODULE + "enc.0.bias") is None
    assert 3 not in chosen
    assert repr(chosen) == "<Selection of 4 of 6 tensors, 156 B>"
    assert chosen.nbytes == sum(lazy.nbytes for lazy in chosen.values())


def test_views_compose(ckpt):
    chosen = (
        ckpt.under("state_dict").strip("module").select("enc.*").rename({"enc": "encoder"}).select("*.weight")
    )
    assert list(chosen) == ["encoder.0.weight", "encoder.1.weight"]
    assert chosen["encoder.1.weight"].name == MODULE + "enc.1.weight"
    assert_equal(
        chosen.materialize(),
        {name.replace("enc", "encoder"): t for name, t in expected("enc.0.weight", "enc.1.weight").items()},
    )
    assert list(chosen.strip(["encoder."])) == ["0.weight", "1.weight"]


def test_a_view_streams_and_materializes_under_its_names(ckpt):
    chosen = ckpt.under(("state_dict",)).strip("module.")
    names = list(chosen)
    assert names == ["enc.0.weight", "enc.0.bias", "enc.1.weight", "enc.1.bias", "head.weight"]
    assert_equal(chosen.materialize(), expected(*names))
    found = dict(chosen.stream(order="given", dtype="float64"))
    assert_equal(found, {name: tensor.double() for name, tensor in expected(*names).items()})
    with chosen.stream(["enc.*"], order="name") as stream:
        assert stream.names == sorted(names[:4])
        assert_equal(dict(stream), expected(*sorted(names[:4])))


def test_rules_match_the_names_in_the_file(ckpt):
    chosen = ckpt.under("state_dict").strip("module.")
    found = chosen.materialize(dtype={MODULE + "head.*": "float32"}, transpose={"*head.weight": True})
    assert (found["head.weight"].dtype, found["head.weight"].shape) == (torch.float32, (3, 2))


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        ("*.head.weight", ["state_dict.module.head.weight"]),
        (MODULE + "head.weight", ["state_dict.module.head.weight"]),
        (["*.1.bias", MODULE + "enc.0.bias"], [MODULE + "enc.1.bias", MODULE + "enc.0.bias"]),
        ([MODULE + "enc.1.bias", "*.bias"], [MODULE + "enc.1.bias", MODULE + "enc.0.bias"]),
        (["*.[01].bias", "*bias"], [MODULE + "enc.0.bias", MODULE + "enc.1.bias"]),
        ([], []),
    ],
)
def test_names_are_names_and_patterns(ckpt, names, wanted):
    assert list(ckpt.materialize(names)) == wanted
    assert [name for name, _ in ckpt.stream(names, order="given")] == wanted
    if names:
        assert list(ckpt.select(names)) == wanted


def test_a_name_with_surrogates_is_an_unknown_name(ckpt):
    name = "head\ud800"
    assert name not in ckpt
    assert ckpt.get(name, 3) == 3
    for use in (lambda: ckpt[name], lambda: ckpt.materialize([name]), lambda: ckpt.select(name)):
        with pytest.raises(rustload.TensorNotFoundError):
            use()


def test_a_pattern_without_a_match_warns_and_an_unknown_name_raises(ckpt):
    with pytest.warns(
        RustloadWarning,
        match=r"names= has the pattern '\*.wieght', which matches no name \(did you mean: \*\.weight",
    ):
        assert ckpt.materialize(["*.wieght"]) == {}
    with pytest.raises(rustload.TensorNotFoundError) as caught:
        ckpt.materialize(["ema.enc.0.wieght"])
    assert "did you mean: ema.enc.0.weight" in caught.value.__notes__
    for use in (
        lambda: ckpt.materialize(["ema.enc.0.wieght"], strip="ema"),
        lambda: ckpt.under("ema")["enc.0.wieght"],
        lambda: ckpt.under("ema").select("enc.0.wieght"),
        lambda: ckpt.under("ema").materialize(["enc.0.wieght"], strip="enc"),
    ):
        with pytest.raises(rustload.TensorNotFoundError) as caught:
            use()
        assert any("enc.0.weight" in note for note in caught.value.__notes__)
    # A name of the checkpoint that the selection does not have.
    with pytest.raises(rustload.TensorNotFoundError, match="no selected tensor is named"):
        ckpt.select("ema.*")[MODULE + "head.weight"]
    with pytest.raises(TypeError, match="a pattern is a str"):
        ckpt.select([3])
    with pytest.raises(TypeError, match="tensor names are str"):
        ckpt.select("*")[3]


@pytest.mark.parametrize("order", ["file", "name", "given"])
def test_key_strip_and_rename_name_the_results(ckpt, order):
    options = {"key": "state_dict", "strip": "module.", "rename": {"head": "lm_head"}}
    wanted = {
        name.replace("head", "lm_head"): t
        for name, t in expected(*ckpt.under("state_dict").strip("module")).items()
    }
    assert_equal(ckpt.materialize(**options), wanted)
    assert_equal(dict(sorted(ckpt.stream(order=order, **options))), dict(sorted(wanted.items())))
    assert list(ckpt.materialize("*.bias", **options | {"rename": None})) == ["enc.0.bias", "enc.1.bias"]
    assert list(ckpt.materialize(rename={MODULE + "enc": None, "ema": None})) == [MODULE + "head.weight"]
    stripped = rustload.torch.state_dict(ckpt, **options)
    assert list(stripped) == list(wanted)


@pytest.mark.parametrize("tail", ["", ".w", ".", "..", ".w.", "..w"])
def test_a_renamed_prefix_keeps_what_comes_after_it(save, tail):
    ckpt = rustload.open(save({"a.b" + tail: torch.ones(1)}, "tail.safetensors"))
    assert list(ckpt.rename({"a.b": "c.d"})) == ["c.d" + tail]
    assert list(ckpt.rename({"a": ""})) == ["b" + tail]


class Text(str):
    __slots__ = ()


def test_names_of_results_are_plain_texts(ckpt):
    name = Text("ema.enc.0.weight")
    for found in (
        ckpt.materialize([name]),
        ckpt.select(name),
        ckpt.select([name]).materialize(),
        ckpt.materialize("ema.enc.0.weight", rename=Text),
        ckpt.materialize(rename={"enc.0.weight": Text("w")}, key=Text("ema")),
    ):
        assert {type(one) for one in found} == {str}


@pytest.mark.parametrize("given", [5, [5], b"a"])
@pytest.mark.parametrize("argument", ["key", "strip"])
def test_a_key_or_prefix_of_another_type_is_a_type_error(ckpt, argument, given):
    with pytest.raises(TypeError, match=f"{argument}= is a .*, not "):
        ckpt.materialize(**{argument: given})


@pytest.mark.parametrize("new", [5, ["a"], b"w", True])
def test_a_rename_that_gives_no_text_is_a_type_error(ckpt, new):
    for rename in (lambda _: new, {"ema": new}):
        with pytest.raises(TypeError, match=r"rename= gives .*, not a str or None"):
            ckpt.materialize(rename=rename)
        with pytest.raises(TypeError, match=r"rename= gives .*, not a str or None"):
            ckpt.rename(rename)


def test_two_results_of_one_name_are_an_error(ckpt):
    for use in (
        lambda: ckpt.materialize(strip=["state_dict.module.", "ema."]),
        lambda: ckpt.stream(strip=["state_dict.module.", "ema."]),
        lambda: ckpt.strip(["state_dict.module.", "ema."]),
    ):
        with pytest.raises(ValueError, match=r"would both be named 'enc\.0\.weight'"):
            use()
    with pytest.raises(ValueError, match="no tensor is under key 'model'"):
        ckpt.materialize(key="model")
    with pytest.raises(ValueError, match="no tensor is under key 'model'"):
        ckpt.under("model")


def test_tied_names_of_a_view_are_one_object(save):
    weight = torch.ones(3)
    ckpt = rustload.open(save({"m.a": weight, "m.b": weight}))
    found = ckpt.strip("m").materialize(copy=True)
    assert found["a"] is found["b"]
    assert ckpt.strip("m").nbytes == 12


def test_a_selection_goes_where_a_checkpoint_goes(ckpt, tmp_path):
    import rustload.jax
    import rustload.torch

    chosen = ckpt.under("state_dict").strip("module.").select("enc.0.*").strip("enc.0")
    with torch.device("meta"):
        model = torch.nn.Linear(4, 3)
    report = rustload.torch.load_into(model, chosen)
    assert (report.missing, report.unexpected) == ([], [])
    assert_same_bits(model.weight, expected("enc.0.weight")["enc.0.weight"])
    assert list(rustload.torch.state_dict(chosen)) == ["weight", "bias"]
    np.testing.assert_array_equal(rustload.jax.load(chosen)["bias"], [0, 1, 2])
    rustload.save(chosen, tmp_path / "part.safetensors")
    with rustload.open(tmp_path / "part.safetensors") as written:
        assert {name: lazy.torch().tolist() for name, lazy in written.items()} == {
            name: expected(f"enc.0.{name}")[f"enc.0.{name}"].tolist() for name in ("weight", "bias")
        }
    assert [name for name, _ in ckpt.stream(chosen, order="given")] == ["weight", "bias"]
    assert list(ckpt.materialize(chosen)) == ["weight", "bias"]


def test_a_selection_of_a_closed_checkpoint_raises_and_its_handles_work(path):
    with rustload.open(path) as ckpt:
        chosen = ckpt.select("*.bias")
        lazy = next(iter(chosen.values()))
    for use in (chosen.materialize, chosen.stream, lambda: chosen.select("*"), lambda: chosen[lazy.name]):
        with pytest.raises(ValueError, match="closed"):
            use()
    assert lazy.torch().tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="closed"):
        pickle.dumps(chosen)
    with pytest.raises(TypeError, match="selected from a checkpoint"):
        Selection()


def test_json_of_names_and_dtypes(ckpt):
    found = json.loads(
        json.dumps({name: [lazy.dtype, lazy.size, lazy.shape] for name, lazy in ckpt.select("ema*").items()})
    )
    assert found == {"ema.enc.0.weight": ["float32", 12, [3, 4]]}
