"""Names and patterns in arguments: a missing name is an error, and a pattern without effect is a warning."""

import contextlib
import fnmatch
import itertools
import random
import re
import time
import warnings
from collections.abc import Mapping
from types import SimpleNamespace

import pytest
import torch
from support import assert_same_bits

import rustload
import rustload.jax
import rustload.torch
from rustload import RustloadWarning
from rustload._checkpoint.names import select_tensors
from rustload._common.patterns import matches, matching, similar_parts, warn_user
from rustload._common.similar import similar
from rustload._rustload import spell_numbers

NAMES = ("enc.weight", "enc.bias", "lm_head.weight", "a[0].weight")


@pytest.fixture
def path(save):
    return save({name: torch.full((2, 2), float(number)) for number, name in enumerate(NAMES)})


def model():
    module = torch.nn.ModuleDict({"enc": torch.nn.Linear(2, 2), "lm_head": torch.nn.Linear(2, 2, bias=False)})
    module.enc.bias = torch.nn.Parameter(torch.zeros(2, 2))
    return module


def load_into(path, **options):
    return rustload.torch.load_into(model(), path, strict=False, **options)


# The functions with dtype=, and those of them with transpose=.
FUNCTIONS = {
    "stream": lambda path, **options: list(rustload.open(path).stream(**options)),
    "materialize": lambda path, **options: rustload.open(path).materialize(**options),
    "load_into": load_into,
    "jax": lambda path, **options: rustload.jax.load(path, nested=False, **options),
    "state_dict": rustload.torch.state_dict,
}
ARGUMENTS = [
    (function, what)
    for function in FUNCTIONS
    for what in ("dtype", "transpose")
    if (function, what) != ("state_dict", "transpose")
]
EXAMPLE_VALUE = {"dtype": "bfloat16", "transpose": True}


@pytest.mark.parametrize(("function", "argument"), ARGUMENTS)
def test_a_missing_name_is_an_error_that_suggests_similar_names(path, function, argument):
    with pytest.raises(rustload.TensorNotFoundError, match=f"{argument}= names 'lm_haed.weight'") as caught:
        FUNCTIONS[function](
            path, **{argument: {"*.bias": EXAMPLE_VALUE[argument], "lm_haed.weight": EXAMPLE_VALUE[argument]}}
        )
    assert caught.value.code == "NotFound"
    assert "did you mean: lm_head.weight" in caught.value.__notes__[0]


@pytest.mark.parametrize(("function", "argument"), ARGUMENTS)
def test_an_unmatched_pattern_is_a_warning_at_the_users_line(path, function, argument):
    with pytest.warns(RustloadWarning) as warned:
        FUNCTIONS[function](path, **{argument: {"*.wieght": EXAMPLE_VALUE[argument]}})
    assert (
        str(warned[0].message)
        == f"{argument}= has the pattern '*.wieght', which matches no name (did you mean: *.weight)"
    )
    assert warned[0].filename == __file__
    assert len(warned) == 1


@pytest.mark.parametrize(("function", "argument"), ARGUMENTS)
def test_a_shadowed_pattern_is_a_warning(path, function, argument):
    with pytest.warns(RustloadWarning, match=r"has 'lm_head.\*' after '\*.weight', which takes its names"):
        FUNCTIONS[function](path, **{argument: {"*.weight": EXAMPLE_VALUE[argument], "lm_head.*": None}})


@pytest.mark.parametrize("rule", [
    {"lm_head.weight": "float16", "*": "bfloat16"}, {"enc.*": None, "*.weight": "F16"}, {}, None, "bf16", lambda _: None,
    {"a[0].weight": "bf16"},
])  # fmt: skip
@pytest.mark.parametrize("function", FUNCTIONS)
def test_rules_that_have_an_effect_do_not_warn(path, function, rule):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FUNCTIONS[function](path, dtype=rule)


def test_a_name_with_brackets_matches_itself(path):
    found = rustload.open(path).materialize(dtype={"a[0].weight": "float16"})
    assert found["a[0].weight"].dtype == torch.float16
    assert list(rustload.open(path).select("a[0].weight")) == ["a[0].weight"]


def test_a_mapping_for_the_whole_checkpoint_does_not_warn_for_parts(path):
    ckpt = rustload.open(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rules = {"lm_head.weight": "float16", "enc.*": "bfloat16"}
        found = dict(ckpt.stream(["enc.bias"], dtype=rules)) | dict(
            ckpt.stream(ckpt.select("lm_head.*"), dtype=rules)
        )
        found["a"] = ckpt["a[0].weight"].materialize(dtype=rules)  # a single tensor does not warn
    assert [tensor.dtype for tensor in found.values()] == [torch.bfloat16, torch.float16, torch.float32]


def test_a_compiled_pattern_is_a_type_error(path):
    with pytest.raises(TypeError, match="dtype= has a Pattern where a name or a pattern belongs"):
        rustload.open(path).materialize(dtype={re.compile("x"): "bf16"})


def test_select_warns_of_unmatched_patterns_and_refuses_missing_names(path):
    ckpt = rustload.open(path)
    with pytest.warns(RustloadWarning, match=r"no name matches '\*.wieght' \(did you mean: \*\.weight\)"):
        assert ckpt.select("*.wieght") == {}
    with pytest.raises(rustload.TensorNotFoundError, match=r"'enc\.wieght'"):
        ckpt.select("enc.wieght")


@pytest.mark.parametrize(("pattern", "near"), [
    ("model.layer.*", "model.layers.*"), ("modl.layer.{0..3}.*", "model.layers.{0..3}.*"), ("model.layers.7.wieght", "weight"),
    ("*.wieght", "*.weight"), ("[", None), ("[ab].layer", "layers"), ("nosuch.*", None),
    ("{wieght,baas}.layer.*", "weight, bias, layers"),
])  # fmt: skip
def test_a_pattern_is_suggested_that_matches(pattern, near):
    names = [f"model.layers.{at}.{kind}" for at in range(4) for kind in ("weight", "bias")]
    assert similar_parts(pattern, names) == (f"did you mean: {near}" if near else "")


def test_strip_and_rename_warn_of_unmatched_patterns_and_refuse_missing_names(path):
    state_dict = rustload.torch.state_dict
    with pytest.warns(RustloadWarning, match=r"strip= takes nothing off: no name begins with 'modul.'"):
        state_dict(path, strip="modul.")
    with pytest.raises(rustload.TensorNotFoundError, match="rename= names 'encoder'") as caught:
        state_dict(path, rename={"encoder": "layers"})
    assert "did you mean: enc" in caught.value.__notes__[0]
    for rename in ([("^module\\.", "")], {re.compile("^module"): ""}):
        with pytest.warns(RustloadWarning, match=r"rename= has the pattern '\^module.*found in no name"):
            state_dict(path, rename=rename)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(state_dict(path, strip=["module", "lm_head"], rename={"enc.": "e", "rotary.inv_freq": None})) == [
            "e.weight", "e.bias", "weight", "a[0].weight"]  # fmt: skip


def test_a_device_map_refuses_missing_names(path):
    with pytest.raises(
        ValueError, match="device_map names 'lm_haed', which the model does not have"
    ) as caught:
        load_into(path, device_map={"": "cpu", "lm_haed": "cpu"})
    assert "did you mean: lm_head" in caught.value.__notes__[0]
    load_into(path, device_map={"": "cpu", "lm_head": "cpu", "enc.bias": "cpu"})


def test_frameworks_have_the_aliases_of_safetensors(path):
    expected = torch.full((2, 2), 1.0)
    for word, name in {"pt": "torch", "pytorch": "torch", "np": "numpy", "flax": "jax"}.items():
        ckpt = rustload.open(path, framework=word)
        assert ckpt.framework == name
        other = rustload.open(path, framework="dlpack")
        found = [
            ckpt["enc.bias"].materialize(), other["enc.bias"].materialize(framework=word),
            other.materialize(["enc.bias"], framework=word)["enc.bias"],
            *(tensor for _, tensor in other.stream(["enc.bias"], framework=word)),
        ]  # fmt: skip
        assert {type(tensor) for tensor in found} == {type(ckpt["enc.bias"].materialize(framework=name))}
        for tensor in found:
            assert_same_bits(torch.tensor(tensor.tolist()), expected)


@pytest.mark.parametrize(("word", "advice"), [
    ("tensorflow", "framework='numpy'"), ("mlx", "framework='numpy'"), ("PT", "write 'pt'"), ("Torch", "write 'torch'"),
    ("cuda", "into device="),
])  # fmt: skip
def test_the_error_for_another_framework_has_advice(path, word, advice):
    for use in (
        lambda: rustload.open(path, framework=word),
        lambda: rustload.open(path)["enc.bias"].materialize(framework=word),
    ):
        with pytest.raises(ValueError, match=f"framework '{word}' is not one of torch, numpy") as caught:
            use()
        assert advice in caught.value.__notes__[0]


@pytest.mark.parametrize("framework", ["flax", "jax"])
def test_safe_open_returns_jax_arrays_as_the_reference_does(save, framework):
    import jax
    import safetensors

    value = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    file = save({"x": value}, "x.safetensors")
    with rustload.safe_open(file, framework) as ours, safetensors.safe_open(file, "flax") as theirs:
        for get in (
            lambda f: f.get_tensor("x"),
            lambda f: f.get_slice("x")[1:, 0:2],
            lambda f: f.get_tensors()["x"] if f is ours else f.get_tensor("x"),
        ):
            found, expected = get(ours), get(theirs)
            assert isinstance(found, jax.Array)
            assert (found.dtype, found.shape, found.tolist()) == (
                expected.dtype,
                expected.shape,
                expected.tolist(),
            )
        with pytest.raises(
            rustload.SafetensorError, match="Device cuda:0 is not supported for framework flax"
        ):
            rustload.safe_open(file, framework, device="cuda:0")


class ManyNames(Mapping):
    """Two million names; a handle is made for the first of them only."""

    def __init__(self) -> None:
        self.names = [f"model.layers.{number}.self_attn.q_proj.weight" for number in range(2_000_000)]
        self.made = 0

    def __getitem__(self, name):
        self.made += 1
        return SimpleNamespace(name=name, path=tuple(name.split(".")))

    def __contains__(self, name):
        return name in self.names

    def __iter__(self):
        return iter(self.names)

    def __len__(self):
        return len(self.names)


def test_what_matches_nothing_of_two_million_names_is_found_out_in_three_passes():
    many = ManyNames()
    nothing = {
        "key": lambda: select_tensors(many, key="nothing"),
        "rename": lambda: select_tensors(many, rename={"nothing": "x", "model.layer": "y"}),
        "pattern": lambda: matching(many, "nothing.*.weight"),
        "warning": lambda: warn_user("no match", "model.*.nothing.wieght", many),
        "name": lambda: similar("model.layers.7.self_attn.q_porj.weight", many),
    }

    def timed(work):
        start = time.process_time()
        with warnings.catch_warnings(), contextlib.suppress(ValueError, KeyError):
            warnings.simplefilter("ignore")
            work()
        return time.process_time() - start

    for what, use in nothing.items():
        many.made = 0
        passes: list[float] = []
        # A slow timing is repeated up to three times.
        while min(passes, default=3) >= 3 and len(passes) < 4:
            once = timed(lambda: [name for name in many if name.startswith("nothing.")])
            passes.append(timed(use) / once)
        assert min(passes) < 3, (what, passes)
        assert many.made <= 20_000 * len(passes)


def test_the_error_for_a_key_says_how_many_names_were_searched():
    with pytest.raises(ValueError, match="no tensor is under key 'nothing'") as caught:
        select_tensors(ManyNames(), key="nothing")
    assert caught.value.__notes__ == [
        "tensors are under: 'model' (20000), among the first 20,000 of 2,000,000"
    ]


def expanded(pattern):
    """The patterns without braces that one with braces stands for: an oracle that lists them all."""
    depth, start, parts = 0, 0, []
    opened = pattern.find("{")
    if opened < 0:
        return [pattern]
    for at in range(opened, len(pattern)):
        depth += {"{": 1, "}": -1}.get(pattern[at], 0)
        if (pattern[at] == "," and depth == 1) or depth == 0:
            parts.append(pattern[start or opened + 1 : at].strip())
            start = at + 1
        if depth == 0:
            break
    listed = []
    for part in parts:
        first, dots, last = part.partition("..")
        if not dots:
            listed += expanded(part)
            continue
        last, _, step = last.partition(" step ")
        width = len(first) if first[0] == "0" and len(first) > 1 else 0
        listed += [str(one).zfill(width) for one in range(int(first), int(last) + 1, int(step or 1))]
    return [pattern[:opened] + one + rest for one in listed for rest in expanded(pattern[start:])]


BRACES = [
    *("a{b,c}", "{a,ab}*{b,c}", "*{ab,a}*bc", "{a,b{c,{d,e*}}}f", "x{,y}z", "{[ab],c}?", "a{b}"),
    *(
        "l.{0..7}",
        "l.{0..12}*",
        "*{3..21}*",
        "l.{08..12}",
        "l.{8..112}.w",
        "l.{0..30 step 2}",
        "{0, 3, 5..9}.w",
    ),
    *(
        "l.{99..101}",
        "l.{1000..1234}",
        "l.{007..100}",
        "{a,l}.{1..3}.{w,*}",
        "l.{5..5}",
        "l.{0..9}",
        "l.{10..99}",
    ),
]


@pytest.mark.parametrize("pattern", BRACES)
def test_braces_match_what_the_patterns_that_they_stand_for_match(pattern):
    made = random.Random(pattern)
    names = ["".join(made.choices("abcdef.xyzlw013", k=made.randint(0, 6))) for _ in range(3000)]
    names += [
        f"l.{number:0{width}}{end}" for number in range(1300) for width in (1, 2, 3) for end in ("", ".w")
    ]
    names += [f"{number}.w" for number in range(20)]
    names += ["".join(one) for length in range(7) for one in itertools.product("abc", repeat=length)]
    names += ["xz", "xyz", "abdf", "abeeef", "xy}z"]
    names = list(dict.fromkeys(names))
    wanted = expanded(pattern)
    expressions = [re.compile(fnmatch.translate(one)) for one in wanted]
    expected = [name for name in names if any(one.match(name) for one in expressions)]
    assert expected
    assert matching(names, pattern) == expected
    assert [name for name in names if matches(name, pattern)] == expected


def test_ranges_are_those_that_info_prints():
    made = random.Random(3)
    for _ in range(300):
        digits = made.choice([0, 0, 3])
        numbers = sorted(made.sample(range(60), made.randint(2, 12)))
        label = spell_numbers(numbers, digits)
        if ", .., " in label:
            with pytest.raises(
                ValueError, match=r"'\.\.' in the pattern .* stands for numbers that were left out"
            ):
                matching([], f"l.{{{label}}}.w")
            continue
        names = [f"l.{number:0{digits}}.w" for number in range(80)]
        assert matching(names, f"l.{{{label}}}.w") == [f"l.{number:0{digits}}.w" for number in numbers]


def test_ranges_are_not_listed():
    start = time.perf_counter()
    for low, high in ((0, 10**18 - 1), (7, 999_999_999), (123, 876_543_210)):
        names = [str(one) for one in (low, high, high - 1, low + 1, (low + high) // 2)]
        others = [f"{high + 1}", "00", "-1", ""] + ([str(low - 1)] if low else [])
        assert matching(names + others, f"{{{low}..{high}}}") == names
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("a{b", "without its '}'"),
        ("a{b{c,d}", "without its '}'"),
        ("{7..0}", "has no number"),
        ("{0..7 step 0}", "has no number"),
        ("{0..999999999 step 2}", "more than 1,024 numbers"),
        ("{0..9999999999999999999}", "more than 18 digits"),
    ],
)
def test_wrong_braces_are_an_error_in_every_argument(path, pattern, why):
    ckpt = rustload.open(path)
    calls = [
        lambda: ckpt.select(pattern),
        lambda: list(ckpt.stream(pattern)),
        lambda: list(ckpt.stream(dtype={pattern: "float16"})),
        lambda: load_into(path, dtype={pattern: "float16"}),
        lambda: rustload.diff(path, path, select=pattern),
        lambda: rustload.convert(path, path.with_suffix(".safetensors"), select=pattern),
        lambda: rustload.jax.load(path, dtype={pattern: "float16"}),
        lambda: rustload.jax.load(path, shardings={pattern: None}),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=re.escape(why)):
            call()


def test_braces_select_in_every_argument(path, tmp_path):
    ckpt = rustload.open(path)
    pattern, names = "{enc,lm_head}.{weight,none}", ["enc.weight", "lm_head.weight"]
    assert list(ckpt.select(pattern)) == names
    assert [name for name, _ in ckpt.stream(pattern)] == names
    dtypes = {name: tensor.dtype for name, tensor in ckpt.stream(dtype={pattern: torch.float16})}
    assert [name for name in dtypes if dtypes[name] == torch.float16] == names
    assert rustload.diff(path, path, select=pattern).equal == 2
    rustload.convert(path, tmp_path / "some.safetensors", select=pattern)
    assert list(rustload.open(tmp_path / "some.safetensors")) == names
    rustload.save(ckpt, tmp_path / "cast.safetensors", dtype={pattern: "float16"})
    cast = rustload.open(tmp_path / "cast.safetensors")
    assert sorted(name for name in cast if cast[name].dtype == "float16") == names
    arrays = rustload.jax.load(path, dtype={pattern: "float16"}, shardings={pattern: None}, nested=False)
    assert sorted(name for name in arrays if arrays[name].dtype == "float16") == names


def test_names_with_pattern_characters_are_themselves(save):
    names = ["a[0]", "a0", "b{c", "b{c,d}", "bc", "e*", "ef"]
    ckpt = rustload.open(save({name: torch.zeros(1) for name in names}))
    for name in ("a[0]", "b{c", "b{c,d}", "e*"):
        assert list(ckpt.select(name)) == [name]
        assert [found for found, _ in ckpt.stream(name)] == [name]


def test_select_takes_expressions_and_callables(path):
    ckpt = rustload.open(path)
    assert list(ckpt.select(re.compile(r"^enc\.|\[0"))) == ["enc.weight", "enc.bias", "a[0].weight"]
    assert list(ckpt.select([re.compile("bias"), "lm_head.*"])) == ["enc.bias", "lm_head.weight"]
    assert list(ckpt.select(lambda tensor: tensor.name.startswith("lm"))) == ["lm_head.weight"]
    assert list(ckpt.strip("enc").select(re.compile("^bias"))) == ["bias"]
    with pytest.warns(RustloadWarning, match="no name matches 'wieght'"):
        assert not list(ckpt.select(re.compile("wieght")))
    for wrong in (3, re.compile(b"a"), [len]):
        with pytest.raises(TypeError, match="a pattern is a str"):
            ckpt.select(wrong)
    assert list(itertools.islice(ckpt.select("*"), 1)) == ["enc.weight"]
