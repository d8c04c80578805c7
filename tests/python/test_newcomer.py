"""Mistakes of new users: each error names the mistake and what to do instead."""

import argparse
import errno
import importlib
import pickle
import warnings

import numpy as np
import pytest
import torch
from support import assert_same_bits

import rustload
import rustload.torch
from rustload._cli import main


@pytest.fixture
def quantized(save):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates quantized tensors; files still have them
        weight = torch.quantize_per_tensor(torch.tensor([[0.3, -0.6], [1.0, 0.4]]), 0.1, 0, torch.qint8)
    return save({"weight": weight, "bias": torch.zeros(2)})


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_load_into_refuses_a_quantized_tensor_for_a_float_parameter(quantized, device):
    model = torch.nn.Linear(2, 2, device=device)
    with pytest.raises(rustload.errors.ModelMismatchError, match=r"quantized \(qint8\)"):
        rustload.torch.load_into(model, quantized)


def test_a_lazy_state_dict_refuses_to_read_a_quantized_tensor_as_integers(quantized):
    state = rustload.torch.state_dict(quantized)
    with pytest.raises(RuntimeError, match="is quantized"):
        torch.nn.Linear(2, 2).load_state_dict(state)
    handle = state["weight"]
    assert (handle.is_quantized, handle.dtype, handle.itemsize) == (True, torch.qint8, 1)
    assert not state["bias"].is_quantized
    other = rustload.torch.state_dict(quantized, dtype={"weight": "F32"})["weight"]
    for use in (
        handle.tensor, handle.float, handle.T.clone, handle[0].sum, other.cpu, handle[0, 0].__float__,
        lambda: handle.to(torch.float32), lambda: handle + 1, lambda: torch.cat([handle, handle]),
        lambda: torch.zeros(2, 2, dtype=torch.int8).copy_(handle), lambda: np.asarray(handle),
    ):  # fmt: skip
        with pytest.raises(rustload.UnsupportedError, match="is quantized") as caught:
            use()
        assert ".dequantize()" in caught.value.__notes__[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = torch.load(quantized)["weight"]
    assert_same_bits(handle.dequantize(), expected.dequantize())
    assert_same_bits(handle[1:].T.dequantize(), expected[1:].T.dequantize())
    assert handle.int_repr().tolist() == [[3, -6], [10, 4]]
    assert_same_bits(state["bias"].dequantize(), torch.zeros(2))
    with pytest.raises(RuntimeError, match="is not quantized"):
        state["bias"].int_repr()


def test_swapped_model_and_path_are_a_type_error(save):
    with pytest.raises(TypeError, match="the path is the second argument"):
        rustload.torch.load_into(save({"w": torch.ones(2)}), torch.nn.Linear(1, 1))


def test_a_mistyped_argument_of_load_is_a_type_error(save):
    path = save({"w": torch.ones(2)})
    with pytest.raises(TypeError, match="map_loaction"):
        rustload.torch.load(path, map_loaction="meta")
    with pytest.warns(UserWarning, match="weights_only=False"):
        found = rustload.torch.load(path, encoding="latin1")
    assert_same_bits(found["w"], torch.ones(2))


def test_the_error_of_safe_open_for_a_missing_name_does_not_mention_a_checkpoint(save):
    with (
        rustload.safe_open(save({"w": torch.ones(2)}), "pt") as file,
        pytest.raises(rustload.SafetensorError) as caught,
    ):
        file.get_tensor("entirely.different")
    assert not any("ckpt" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(("found", "dtype", "advice"), [
    (torch.float32, torch.int8, "allow_lossy=True"), (torch.complex64, torch.float32, "allow_lossy=True"),
    (torch.qint8, torch.float32, "materialize(dequantize=True)"),
])  # fmt: skip
def test_the_error_for_a_lossy_or_quantized_tensor_advises_the_option(save, found, dtype, advice):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = (
            torch.quantize_per_tensor(torch.ones(2), 0.1, 0, found)
            if found is torch.qint8
            else torch.ones(2).to(found)
        )
    model = torch.nn.Module()
    model.register_buffer("w", torch.zeros(2, dtype=dtype))
    with pytest.raises(rustload.ModelMismatchError) as caught:
        rustload.torch.load_into(model, save({"w": value}))
    name = "quantized (qint8)" if found is torch.qint8 else str(found).removeprefix("torch.")
    assert f"w is {name} in the file and {str(dtype).removeprefix('torch.')} in the model" in str(
        caught.value
    )
    assert advice in caught.value.__notes__[0]


def notes(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", ()))


@pytest.fixture
def training(save):
    return save(
        {
            "epoch": 3,
            "model": {"a.w": torch.ones(2), "a": {"b": torch.ones(1)}},
            "args": argparse.Namespace(lr=0.1),
        }
    )


@pytest.mark.parametrize(("name", "says"), [
    ("model", "'model' holds 2 tensor(s): ckpt.select('model.*')"), ("epoch", "it is in ckpt.objects, of type int"),
    ("args", "of type Opaque"), ("wholly.different", ""),
])  # fmt: skip
def test_the_error_for_a_name_that_is_no_tensor_says_what_it_is(training, name, says):
    ckpt = rustload.open(training)
    with pytest.raises(rustload.TensorNotFoundError) as caught:
        ckpt[name]
    assert says in notes(caught.value)
    assert ("ckpt.objects" in notes(caught.value)) == (name in ("epoch", "args"))
    assert ckpt.get(name, 5) == 5


@pytest.mark.parametrize("name", ["to", "float", "mean", "tolist", "device", "cuda"])
def test_the_error_for_a_tensor_method_of_a_lazy_tensor_advises_materialize(simple, name):
    with pytest.raises(AttributeError, match=f"'LazyTensor' object has no attribute '{name}'") as caught:
        getattr(rustload.open(simple)["w"], name)
    assert ".materialize()" in notes(caught.value)


def test_the_error_for_a_module_method_of_a_checkpoint_names_the_function_to_use(simple):
    ckpt = rustload.open(simple)
    for name, says in {
        "state_dict": "rustload.torch.state_dict(ckpt)",
        "load_state_dict": "load_into(model, ckpt)",
        "save": "rustload.save(ckpt, path)",
        "names": "list(ckpt)",
    }.items():
        with pytest.raises(AttributeError) as caught:
            getattr(ckpt, name)
        assert says in notes(caught.value)
    assert not hasattr(ckpt, "epoch")


@pytest.mark.parametrize(("name", "says"), [
    ("load", "rustload.open(path)"), ("load_file", ".materialize()"), ("save_file", "rustload.save("), ("info", "rustload info"),
])  # fmt: skip
def test_the_error_for_a_function_of_another_library_names_the_equivalent(name, says):
    with pytest.raises(AttributeError, match=f"no attribute '{name}'") as caught:
        getattr(rustload, name)
    assert says in notes(caught.value)


@pytest.mark.parametrize(("dtype", "suggested"), [
    ("bfloat", "bfloat16"), ("bf", "bfloat16"), ("fp8", "float8_e4m3fn, float8_e5m2"), ("flaot32", "float32"),
    ("Float64x", "float64"), ("auto", "omit dtype="),
])  # fmt: skip
def test_the_error_for_a_mistyped_dtype_suggests_names(simple, dtype, suggested):
    with pytest.raises(ValueError, match="is not a dtype") as caught:
        rustload.open(simple)["w"].materialize(dtype=dtype)
    assert suggested in notes(caught.value)


def test_the_error_for_a_missing_key_of_a_lazy_state_dict_suggests_names(simple):
    state = rustload.torch.state_dict(simple)
    with pytest.raises(KeyError) as caught:
        state["W"]
    assert isinstance(caught.value, rustload.TensorNotFoundError)
    with pytest.raises(rustload.TensorNotFoundError) as caught:
        rustload.torch.state_dict(simple, rename={"w": "layer.weight"})["layer.wieght"]
    assert notes(caught.value) == "did you mean: layer.weight"
    assert state.get("nothing") is None
    assert "nothing" not in state


def test_a_model_class_instead_of_an_instance_is_a_type_error(simple):
    with pytest.raises(TypeError, match="the model is the class Linear: pass an instance"):
        rustload.torch.load_into(torch.nn.Linear, simple)


# Paths.


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The cache of Hugging Face with one repository, whose files are links to blobs."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--org--tiny"
    snapshot = repository / "snapshots" / "abc"
    for folder in (snapshot, repository / "blobs", repository / "refs"):
        folder.mkdir(parents=True)
    torch.save({"w": torch.ones(2)}, repository / "blobs" / "1")
    (snapshot / "pytorch_model.bin").symlink_to("../../blobs/1")
    (repository / "refs" / "main").write_text("abc\n")
    return repository


def test_a_repository_in_the_hugging_face_cache_opens_by_its_folder(hub):
    for given in (hub, hub / "snapshots" / "abc", str(hub)):
        assert list(rustload.open(given)) == ["w"]
    other = hub / "snapshots" / "def"
    other.mkdir()
    torch.save({"v": torch.ones(2)}, other / "pytorch_model.bin")
    assert list(rustload.open(hub)) == ["w"]  # refs/main still names abc
    (hub / "refs" / "main").write_text("def")
    assert list(rustload.open(hub)) == ["v"]
    (hub / "refs" / "main").unlink()
    with pytest.raises(rustload.FormatError, match="holds no checkpoint") as caught:
        rustload.open(hub)  # two snapshots and no refs/main
    assert "snapshots/abc/pytorch_model.bin" in notes(caught.value)


def test_the_cache_is_where_the_environment_says(hub, tmp_path, monkeypatch):
    cache = tmp_path / "caches" / "huggingface" / "hub"
    cache.mkdir(parents=True)
    (cache / hub.name).symlink_to(hub)
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.setenv("HUGGINGFACE_HUB_CACHE", str(tmp_path))
    with pytest.raises(FileNotFoundError) as caught:
        rustload.open("org/tiny")
    assert str(hub) in notes(caught.value)
    monkeypatch.delenv("HUGGINGFACE_HUB_CACHE")
    monkeypatch.delenv("HF_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    with pytest.raises(FileNotFoundError) as caught:
        rustload.open("org/tiny")
    assert str(cache / hub.name) in notes(caught.value)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_HOME", "~/$CACHES/huggingface")
    monkeypatch.setenv("CACHES", "caches")
    with pytest.raises(FileNotFoundError) as caught:
        rustload.open("org/tiny")
    assert str(cache / hub.name) in notes(caught.value)


def test_the_error_for_a_repository_name_has_its_path_in_the_cache(hub):
    with pytest.raises(FileNotFoundError) as caught:
        rustload.open("org/tiny")
    assert notes(caught.value) == f"it is in the Hugging Face cache: rustload.open({str(hub)!r})"
    with pytest.raises(FileNotFoundError) as caught:
        rustload.open("org/other")
    assert "hf://org/other" in notes(caught.value)


def test_the_error_for_a_folder_lists_the_checkpoints_below_it(tmp_path):
    for number in range(5):
        (tmp_path / f"run{number}").mkdir()
        torch.save({"w": torch.ones(1)}, tmp_path / f"run{number}" / "model.pt")
    with pytest.raises(rustload.FormatError) as caught:
        rustload.open(tmp_path)
    assert f"below it there are '{tmp_path}/run0/model.pt', " in notes(caught.value)
    assert "and 2 more: open one" in notes(caught.value)
    (tmp_path / "empty").mkdir()
    with pytest.raises(rustload.FormatError, match="holds no checkpoint: it has no files") as caught:
        rustload.open(tmp_path / "empty")
    assert "below it" not in notes(caught.value)
    for number in range(7):
        (tmp_path / "empty" / f"{number}.txt").touch()
    (tmp_path / "empty" / "step_7").mkdir()
    (tmp_path / "empty" / "step_7" / ".metadata").touch()
    with pytest.raises(
        rustload.FormatError, match=r"it has 0\.txt, 1\.txt, 2\.txt, 3\.txt, 4\.txt and 2 more files"
    ) as caught:
        rustload.open(tmp_path / "empty")
    assert f"below it there are '{tmp_path}/empty/step_7': open" in notes(caught.value)


def test_the_error_for_a_bad_file_in_a_folder_does_not_suggest_that_file(tmp_path):
    for content in (b"", b"version https://git-lfs.github.com/spec/v1\n"):
        (tmp_path / "pytorch_model.bin").write_bytes(content)
        for load in (rustload.open, rustload.torch.load):
            with pytest.raises(rustload.FormatError) as caught:
                load(tmp_path)
            assert "pytorch_model.bin" in str(caught.value)
            assert "below it" not in notes(caught.value)


def test_several_files_in_a_folder_are_listed_once(tmp_path):
    for name in ("epoch1.pt", "epoch2.pt"):
        torch.save({"w": torch.ones(1)}, tmp_path / name)
    for load in (rustload.open, rustload.torch.load):
        with pytest.raises(rustload.FormatError) as caught:
            load(tmp_path)
        assert notes(caught.value).count("epoch1.pt") == 1


def test_the_error_of_safe_open_for_a_missing_file_has_the_notes_of_open(tmp_path):
    (tmp_path / "model.safetensors").touch()
    for given in (str(tmp_path / "model.safetensor"), "~/model.pt", "org/model"):
        with pytest.raises(FileNotFoundError) as theirs:
            rustload.open(given)
        with pytest.raises(FileNotFoundError) as ours:
            rustload.safe_open(given, "pt")
        unpickled = pickle.loads(pickle.dumps(ours.value))
        for error in (ours.value, unpickled):
            assert (error.errno, error.filename) == (errno.ENOENT, given)
        assert str(ours.value) == str(theirs.value)
        assert ours.value.__notes__ == theirs.value.__notes__
        assert ours.value.code == "Io"


def test_the_error_of_safe_open_for_a_list_points_to_open(save):
    with pytest.raises(TypeError, match="filename") as caught:
        rustload.safe_open([save({"w": torch.ones(2)})], "pt")
    assert "rustload.open takes a list" in notes(caught.value)


def test_the_error_for_model_parallel_shards_advises_concat(tmp_path):
    for number in range(2):
        torch.save({"w": torch.ones(2)}, tmp_path / f"consolidated.0{number}.pth")
    with pytest.raises(rustload.FormatError, match="in two shards") as caught:
        rustload.open(tmp_path)
    assert "rustload.concat" in notes(caught.value)


@pytest.mark.parametrize("device", ["mps", "xpu", "hpu:1"])
def test_a_missing_device_other_than_cuda_is_a_device_error(save, device):
    path = save({"w": torch.ones(2, 2)}, "m.safetensors")
    uses = (
        lambda: rustload.open(path)["w"].materialize(device=device),
        lambda: dict(rustload.open(path).stream(device=device)),
        lambda: rustload.torch.load_into(torch.nn.Module(), path, device=device, strict=False),
        lambda: rustload.torch.state_dict(path, device=device),
        lambda: rustload.torch.load(path, device),
        lambda: rustload.safe_open(path, "pt", device=device).get_tensor("w"),
    )
    for use in uses:
        with pytest.raises(rustload.DeviceError, match=f"device '{device}' is not available") as caught:
            use()
        assert caught.value.__cause__ is not None
        assert "torch" in notes(caught.value)
        assert "device='cpu'" in notes(caught.value)
    assert rustload.open(path)["w"].materialize(device="meta").is_meta


def test_the_error_for_a_failed_download_quotes_its_text(tmp_path):
    path = tmp_path / "model.bin"
    path.write_text("Invalid username or password.")
    with pytest.raises(rustload.FormatError, match=r"the text 'Invalid username or password\.'") as caught:
        rustload.open(path)
    assert "downloaded" in notes(caught.value)


def test_the_error_for_a_pattern_of_paths_advises_glob():
    with pytest.raises(FileNotFoundError) as caught:
        rustload.open("model-*.bin")
    assert "glob.glob" in notes(caught.value)


def transposed(use, path, target, rule):
    """What loads or writes a checkpoint by a rule for its transposes."""
    if use == "materialize":
        rustload.open(path).materialize(transpose=rule)
    elif use == "save":
        rustload.save(rustload.open(path), target, transpose=rule)
    elif use == "jax":
        pytest.importorskip("jax")
        importlib.import_module("rustload.jax").load(path, transpose=rule)
    else:
        model = torch.nn.Linear(2, 3, bias=False)
        model.norm = torch.nn.LayerNorm(3, bias=False)
        rustload.torch.load_into(model, path, transpose=rule)


@pytest.mark.parametrize("use", ["materialize", "save", "jax", "load_into"])
def test_the_error_for_the_transpose_of_a_vector_says_what_to_select(save, tmp_path, use):
    path = save({"weight": torch.ones(2, 3), "norm.weight": torch.ones(3)})
    target = tmp_path / "out.safetensors"
    with pytest.raises(
        ValueError, match=r"2 dimensions or more, the tensor has 1 \(norm\.weight\)"
    ) as caught:
        transposed(use, path, target, {"*weight": True})
    assert "lambda t: t.ndim == 2" in notes(caught.value)
    transposed(use, path, target, lambda t: t.ndim == 2)


def test_the_error_for_a_mistyped_command_suggests_one(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["infoo", "model.pt"])
    assert caught.value.code == 2
    assert "did you mean: rustload info\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (["info", "--filter", "xyz"], "--filter names 'xyz', and no tensor has that name"),
        (["stats", "--select", "xyz"], "--select names 'xyz', and no tensor has that name"),
        (["diff", "--select", "xyz"], "--select has 'xyz', which matches no name"),
    ],
)
def test_the_error_for_a_name_on_the_command_line_names_its_option(simple, capsys, command, text):
    second = [str(simple)] if command[0] == "diff" else []
    assert main([*command, str(simple), *second]) == 3
    assert capsys.readouterr().err == f"rustload: error: {text}\n  note: List the names: rustload info.\n"


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (["stats", "--select", "xyz*", "--select", "w*"], "no name matches 'xyz*'"),
        (["diff", "--strip", "xyz."], "--strip takes nothing off: no name begins with 'xyz.'"),
        (
            ["convert", "--dtype", "float16", "--dtype", "xyz*=float32"],
            "--dtype has the pattern 'xyz*', which matches no name",
        ),
    ],
)
def test_a_warning_of_the_command_line_is_one_line(save, tmp_path, capsys, command, text):
    path = str(save({"weight": torch.ones(2)}))
    second = {"diff": [path], "convert": [str(tmp_path / "out.safetensors")]}.get(command[0], [])
    assert main([*command, path, *second]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("rustload: warning: ")
    assert text in line


def test_the_advice_for_a_failed_read_does_not_speak_of_a_number_that_is_not_shown(simple, capsys):
    assert main(["info", str(simple / "weight")]) == 3
    error, note = capsys.readouterr().err.splitlines()
    assert error.endswith("weight: not a directory")
    assert note == "  note: Check the path, its permissions and the disk."


@pytest.mark.parametrize("pattern", [3, None, b"weight"])
def test_a_selection_by_something_other_than_names_is_a_type_error(simple, pattern):
    with pytest.raises(TypeError, match="a pattern is a str, a compiled pattern or a callable, not"):
        rustload.open(simple).select(pattern)
