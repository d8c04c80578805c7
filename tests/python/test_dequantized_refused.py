"""What is no weight of a known scheme is refused under `dequantize=True`, and is untouched where it only looks quantized."""

import json
import random
import time
from pathlib import Path

import pytest
import torch
from attacks.probe import Cost
from quantized_case import E4M3, F16, U8, Case, Draw
from quantized_files import CASES, write
from quantized_ints import pack_quantized
from quantized_mutants import contradiction, mutant, written
from quantized_refused import JSON, LOOK_ALIKES, REFUSED, changed, ones, state
from safetensors.torch import save_file
from support import same

import rustload

KINDS = ["safetensors", "pt", "sharded"]
CODES = {"QuantUnknown", "TensorBounds"}
SECONDS_MAX = 0.05
BYTES_MAX = 32 << 20


def name_of(case: Case, folder: Path) -> str:
    """What the logical view calls the codes, which it shows under their own name where they are in no known scheme."""
    ((weight, codes),) = case.codes.items()
    return codes if codes in rustload.open(folder, dequantize=True) else weight


def refusals(folder: Path, name: str) -> list[rustload.RustloadError]:
    """The errors of each way to read a tensor: as a whole, in a part, as another dtype, with all others, and converted."""
    ckpt, found = rustload.open(folder, dequantize=True), []
    for way in (
        lambda: ckpt[name].materialize(threads=1),
        lambda: ckpt[name].materialize(threads=None, copy=None),
        lambda: ckpt[name][:1].materialize(threads=1),
        lambda: ckpt[name].materialize(dtype="float32"),
        lambda: list(ckpt.stream()),
        lambda: ckpt.materialize(threads=1),
        lambda: rustload.convert(folder, folder / "out.safetensors", dequantize=True),
    ):
        with pytest.raises((rustload.UnsupportedError, rustload.FormatError)) as raised:
            way()
        found.append(raised.value)
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", REFUSED)
def test_codes_of_no_known_scheme_are_an_error(name, kind, tmp_path):
    case = REFUSED[name]()
    write(case, tmp_path, kind)
    for error in refusals(tmp_path, name_of(case, tmp_path)):
        assert error.code in CODES, error
        assert isinstance(error, rustload.FormatError) == (error.code == "TensorBounds")
    assert not (tmp_path / "out.safetensors").exists()


def test_a_refusal_takes_neither_time_nor_memory(tmp_path):
    for number, make in enumerate(REFUSED.values()):
        case, folder = make(), tmp_path / str(number)
        write(case, folder)
        name, seconds = name_of(case, folder), []
        for _ in range(3):
            cost, start = Cost(), time.perf_counter()
            with pytest.raises((rustload.UnsupportedError, rustload.FormatError)):
                rustload.open(folder, dequantize=True)[name].materialize()
            seconds.append(time.perf_counter() - start)
            assert cost.now()["peak"] < BYTES_MAX, case.name
        assert min(seconds) < SECONDS_MAX, case.name


@pytest.mark.parametrize("kind", ["safetensors", "pt"])
@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_what_only_looks_quantized_is_untouched(name, kind, tmp_path):
    tensors = {one: tensor.clone() for one, tensor in LOOK_ALIKES[name].items()}
    path = tmp_path / f"m.{kind}"
    (save_file if kind == "safetensors" else torch.save)(tensors, path)
    ckpt = rustload.open(path, dequantize=True)
    assert set(ckpt) == set(tensors)
    found = ckpt.materialize()
    for one, tensor in tensors.items():
        assert ckpt[one].scheme is None
        assert found[one].dtype == tensor.dtype
        assert same(found[one], tensor)


@pytest.mark.parametrize("name", [one for one in CASES if not one.startswith("sparse")])
def test_no_weight_of_an_unknown_method_is_a_number(name, tmp_path):
    case = CASES[name]()
    write(
        case._replace(config={"quantization_config": {"quant_method": "of-tomorrow"}}, sidecars=None),
        tmp_path,
    )
    ckpt = rustload.open(tmp_path, dequantize=True)
    for weight, codes in case.codes.items():
        with pytest.raises(rustload.RustloadError) as caught:
            ckpt[codes if codes in ckpt else weight].materialize()
        assert caught.value.code in CODES


@pytest.mark.parametrize(
    "layers",
    [
        {"layers": {}},
        {"layers": {"another": {"format": "float8_e4m3fn"}}},
        {"layers": {"model.layers.0.mlp.up_proj": {"format": "nvfp4"}}},
        {"layers": [1]},
        [],
        "layers",
        {"layers": {"model.layers.0.mlp.up_proj": {"format": "float8_e4m3fn"}}, "x": "x" * (5 << 20)},
    ],
)
def test_what_the_header_says_of_layers_is_not_contradicted(layers, tmp_path):
    for text in (json.dumps(layers), json.dumps(layers)[:-1]):
        metadata = {"_quantization_metadata": text}
        write(CASES["fp8 of ComfyUI with a header"]()._replace(metadata=metadata), tmp_path)
        with pytest.raises(rustload.UnsupportedError, match="ComfyUI") as caught:
            rustload.open(tmp_path, dequantize=True)["model.layers.0.mlp.up_proj.weight"].materialize()
        assert caught.value.code == "QuantUnknown"


@pytest.mark.parametrize(
    ("name", "packing"),
    [
        ("gptq v1", "auto_round:auto_gptq"),
        ("gptq v2", "auto_round"),
        ("gptq v2", "auto_round:gptqmodel"),
    ],
)
def test_zero_points_of_autoround_are_stored_as_its_packing_says(name, packing, tmp_path):
    case = CASES[name]()
    config = {"quant_method": "auto-round", "sym": False, "data_type": "int", "packing_format": packing}
    write(case._replace(config={"quantization_config": config}), tmp_path)
    ckpt = rustload.open(tmp_path, dequantize=True)
    for weight, value in case.weights.items():
        assert same(ckpt[weight].materialize(), value)


def test_weights_of_a_method_that_are_not_known_as_codes_are_not_converted(tmp_path):
    tensors = {"a.trellis": torch.ones(2, 2, 64, dtype=torch.int16), "a.suh": ones(32, dtype=F16)}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "exl3"}}))
    with pytest.raises(rustload.UnsupportedError, match="says exl3, and no tensor is in a scheme") as caught:
        rustload.convert(tmp_path, tmp_path / "out", dequantize=True, copy_others=True)
    assert caught.value.code == "QuantUnknown"
    assert not (tmp_path / "out").exists()
    assert same(rustload.open(tmp_path, dequantize=True)["a.suh"].materialize(), tensors["a.suh"])


@pytest.mark.parametrize("size", [[0, 128], [1 << 40, 128], [64, 64], "no list"])
def test_a_configuration_is_not_believed_against_the_tensors(size, tmp_path):
    case = CASES["fp8 block 128 ragged"]()
    ((weight, value),) = case.weights.items()
    config = {"quantization_config": {**case.config["quantization_config"], "weight_block_size": size}}
    write(case._replace(config=config), tmp_path)
    assert same(rustload.open(tmp_path, dequantize=True)[weight].materialize().to(value.dtype), value)


@pytest.mark.parametrize(
    ("name", "ending"),
    [("pack 4 group g_idx asymmetric", "g_idx"), ("gptq v1", "qzeros"), ("gpt-oss", "_scales")],
)
def test_what_belongs_to_codes_has_none_of_their_bytes(name, ending, tmp_path):
    case = CASES[name]()
    ((weight, codes),) = case.codes.items()
    (companion,) = (one for one in case.companions[weight] if one.endswith(ending))
    tensor = case.tensors[companion]
    inside = case.tensors[codes].reshape(-1)[-tensor.numel() :].view(tensor.shape)
    write(case._replace(tensors={**case.tensors, companion: inside}), tmp_path, "pt")
    with pytest.raises(rustload.FormatError, match="bytes of the codes"):
        rustload.open(tmp_path, dequantize=True)[codes].materialize()


def test_codes_that_are_not_in_c_order_are_never_numbers(tmp_path):
    codes = torch.arange(48, dtype=U8).view(E4M3).reshape(6, 8)
    for weight, scales in ((codes.T, torch.ones(8, 1)), (codes.reshape(2, 3, 8).mT, torch.ones(2, 8, 1))):
        torch.save({"a.weight": weight, "a.weight_scale": scales}, tmp_path / "m.pt")
        lazy = rustload.open(tmp_path / "m.pt", dequantize=True)["a.weight"]
        for part in (lazy, lazy[1:], lazy.T):
            with pytest.raises(rustload.UnsupportedError, match="in C order") as caught:
                part.materialize()
            assert caught.value.code == "QuantUnknown"
            assert "convert the checkpoint without dequantize" in str(caught.value)
        rustload.convert(tmp_path / "m.pt", tmp_path / "m.safetensors", overwrite=True)
        decoded = rustload.open(tmp_path / "m.safetensors", dequantize=True)["a.weight"]
        assert same(decoded.materialize(), weight.float())


@pytest.mark.parametrize("new", [True, False])
def test_tied_codes_with_different_scales_are_different_weights(new, tmp_path):
    weight, scale = Draw("tied").bytes((130, 7), E4M3), torch.tensor([[0.5], [0.25]])
    given = {"a": weight, "a_scale_inv": scale, "b": weight, "b_scale_inv": scale * 2, "c": weight}
    torch.save(given, tmp_path / "m.pt", _use_new_zipfile_serialization=new)
    ckpt = rustload.open(tmp_path / "m.pt", dequantize=True)
    wide = scale.repeat_interleave(128, 0)[:130]
    for name, wanted in {"a": weight.float() * wide, "b": weight.float() * (wide * 2)}.items():
        assert same(ckpt[name].materialize(), wanted)
        assert same(dict(ckpt.stream(["a", "b"]))[name], wanted)
    # Without scales, the weight has no numbers.
    with pytest.raises(rustload.UnsupportedError, match="no scale is beside it"):
        ckpt["c"].materialize()
    assert same(dict(rustload.open(tmp_path / "m.pt").stream())["c"], weight)


def test_a_chain_of_scales_of_scales_is_followed_once(tmp_path):
    names = ["w" + "_scale_inv" * count for count in range(3000)]
    save_file({name: ones(1, 1, dtype=E4M3) for name in names}, tmp_path / "m.safetensors")
    with pytest.raises(rustload.UnsupportedError, match="no floats or exponents"):
        rustload.open(tmp_path / "m.safetensors", dequantize=True)["w"].materialize()


def test_tied_tensors_of_other_names_are_weights_of_their_own(tmp_path):
    case = CASES["nvfp4 of ModelOpt []"]()
    ((weight, codes),) = case.codes.items()
    module, scale = codes.removesuffix("weight"), case.tensors[f"{codes}_scale"]
    whole = case.tensors[f"{codes}_scale_2"]
    other = {"b.weight_packed": case.tensors[codes], "b.weight_scale": scale, "b.weight_global_scale": whole}
    tied = {f"c.{one.removeprefix(module)}": case.tensors[one] for one in (codes, *case.companions[weight])}
    torch.save({**case.tensors, **other, **tied}, tmp_path / "m.pt")
    (tmp_path / "config.json").write_text(json.dumps(case.config))
    found = rustload.open(tmp_path / "m.pt", dequantize=True)
    assert same(found[weight].materialize(), case.weights[weight])
    assert same(found["c.weight"].materialize(), case.weights[weight])
    torch.save({**other}, tmp_path / "n.pt")
    alone = rustload.open(tmp_path / "n.pt", dequantize=True)["b.weight"].materialize()
    assert same(found["b.weight"].materialize(), alone)
    assert not same(alone, case.weights[weight])


@pytest.mark.parametrize("size", [0.0, float("inf"), float("nan"), -float("inf")])
def test_a_scale_that_divides_is_a_number_and_not_zero(size, tmp_path):
    of = "nvfp4 of compressed-tensors [1]"
    case = changed("", of, {"weight_global_scale": torch.tensor([size])})
    write(case, tmp_path)
    with pytest.raises(rustload.FormatError, match="global scale"):
        rustload.open(tmp_path, dequantize=True)[name_of(case, tmp_path)].materialize()


@pytest.mark.parametrize(
    "text",
    [
        b'{"quant_type":"nf4","blocksize":64,"blocksize":32,"dtype":"bfloat16","shape":[24,64]}',
        b'{"quant_type":"nf4","blocksize":64,"dtype":"bfloat16","shape":[24,64],"other":1}',
        b'{"quant_type":"nf4","blocksize":64,"dtype":"bfloat16","shape":' + b"[" * 1000 + b"]" * 1000 + b"}",
        b'{"quant_type":"nf4","blocksize":64,"dtype":"bfloat16","shape":[24,64]} {}',
        b'[["quant_type","nf4"]]',
    ],
    ids=["twice", "unknown", "nested", "two", "list"],
)
def test_a_description_has_known_keys_once(text, tmp_path):
    case = changed("", "nf4", {JSON: torch.frombuffer(bytearray(text), dtype=U8)})
    write(case, tmp_path)
    with pytest.raises(rustload.UnsupportedError, match="description of bitsandbytes"):
        rustload.open(tmp_path, dequantize=True)[name_of(case, tmp_path)].materialize()


def test_groups_of_gptq_that_are_not_whole_need_their_size(tmp_path):
    """80 rows in 3 groups may be 27, 28 to 39 rows each, of which the configuration says one."""
    found = CASES["gptq v1 last group short"]()
    ((weight, value),) = found.weights.items()
    tensors = {name: tensor for name, tensor in found.tensors.items() if not name.endswith("g_idx")}
    write(found._replace(tensors=tensors), tmp_path / "said")
    assert same(rustload.open(tmp_path / "said", dequantize=True)[weight].materialize(), value)
    settings = {**found.config["quantization_config"], "group_size": 80}
    other = found._replace(tensors=tensors, config={"quantization_config": settings}, weights={})
    write(other, tmp_path / "unsaid")
    with pytest.raises(rustload.FormatError, match="80 rows are not in 3 groups"):
        rustload.open(tmp_path / "unsaid", dequantize=True)[name_of(other, tmp_path / "unsaid")].materialize()


def test_zero_points_of_gptq_are_whole_words(tmp_path):
    """24 columns of 3 bits are 72 bits: three words that could be 4-bit codes too are not read as these."""
    case = CASES["gptq v1"]()
    ((weight, codes),) = case.codes.items()
    module = codes.removesuffix("qweight")
    tensors = {
        **case.tensors,
        codes: ones(12, 23, dtype=torch.int32),
        f"{module}scales": ones(3, 23, dtype=F16),
    }
    other = case._replace(tensors=tensors)
    write(other, tmp_path)
    with pytest.raises(rustload.FormatError, match="the zero points are"):
        rustload.open(tmp_path, dequantize=True)[name_of(other, tmp_path)].materialize()
    assert weight.endswith("weight")


@pytest.mark.parametrize("old", [True, False])
def test_words_that_both_packings_fill_are_refused(tmp_path, old):
    """45 codes of 5 bits take 8 words whether or not some lie in two of them."""
    case = pack_quantized("ambiguous", (8, 45), 5, 0, old=old)
    write(case, tmp_path)
    with pytest.raises(rustload.UnsupportedError, match="some lie in two words, or none"):
        rustload.open(tmp_path, dequantize=True)[name_of(case, tmp_path)].materialize()


@pytest.mark.parametrize(
    "name", [name for name in CASES if not name.startswith(("sparse", "torchao", "mlx"))][::2]
)
def test_checkpoints_of_big_endian_machines_have_the_same_weights(name, tmp_path):
    case = CASES[name]()
    written(case, tmp_path, "big")
    ckpt, draw = rustload.open(tmp_path, dequantize=True), random.Random(0)
    for one, value in case.weights.items():
        whole = ckpt[one].materialize()
        assert same(whole.to(value.dtype), value)
        for _ in range(8):
            low, high = sorted(draw.sample(range(whole.shape[-1] + 1), 2))
            assert same(ckpt[one][..., low:high].materialize(), whole[..., low:high])


def test_random_changes_are_refused_or_read_alike_in_parts_and_in_every_kind_of_file(tmp_path):
    for number in range(300):
        draw = random.Random(number)
        name, case = mutant(draw)
        assert contradiction(case, tmp_path / str(number), draw) == [], (number, name)


def test_the_states_that_are_refused_are_refused_for_what_they_say(tmp_path):
    case = changed("", "nf4", {JSON: state()})
    write(case, tmp_path)
    found = rustload.open(tmp_path, dequantize=True)[name_of(case, tmp_path)]
    assert found.shape == (24, 64)
