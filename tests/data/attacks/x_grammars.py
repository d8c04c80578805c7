"""X200 to X209: members and objects that a reader acts on, and that only look as if no reader did."""

from collections.abc import Callable

from attacks.pickles import BUILD, SYSTEM, call, integer, listed, many, name, named, numpy_dtype, pickle, text
from attacks.registry import Opens, Refused, family
from attacks.streams import TAR_END, tar_member
from attacks.x_detectors import DTYPE, OBJECT, joblib, wrapped
from attacks.zips import GOOD, Zip, torch_zip

opened, tars, unknown = Opens("opens without it", list), Refused("TarUnsupported"), Refused("UnknownFormat")
CODE = b"def forward(self):\n    return 1\n"


def script(path: bytes) -> bytes:
    """An archive with TorchScript's constants and code."""
    return Zip().add("constants.pkl", pickle(many())).add_path(path, CODE).bytes()


family("X200", "TorchScript code under a name that only a reader without case finds", {
    "folder": lambda: script(b"archive/Code/__torch__.py"), "file": lambda: script(b"archive/code/__torch__.PY"),
    "root": lambda: script(b"ARCHIVE/CODE/__TORCH__.PY"),
}, {"folder": opened, "file": opened, "root": Refused("ZipName")}, "CodeInArchive", verdict="unknown")  # fmt: skip
family("X201", "two members whose names differ in case only", {
    "code": lambda: Zip().add("x/a.npy", b"1").add("X/a.npy", b"2").bytes(),
}, opened, "ZipCase", verdict="unknown")  # fmt: skip
family("X202", "a member that a reader acts on by its name", {
    "python": lambda: Zip().add("helper.py", b"import os\n").bytes(), "bytecode": lambda: Zip().add("bytecode.pkl", pickle(many())).bytes(),
    "old_script": lambda: Zip().add("model.json", b"{}").bytes(), "keras": lambda: Zip().add("config.json", b'{"class_name": "Lambda"}').bytes(),
    "json": lambda: Zip().add("other.json", pickle(many())).bytes(), "text": lambda: Zip().add("notes", b"text").bytes(),
}, opened, "", verdict="unknown")  # fmt: skip
family("X203", "a short text that is not as torch writes it", {
    "version": lambda: Zip().add(".format_version", b"1 ").bytes(), "id": lambda: Zip().add(".data/serialization_id", b"1; import os").bytes(),
    "case": lambda: Zip().add(".FORMAT_VERSION", b"+1").bytes(), "pickle": lambda: Zip().add(".format_version", pickle(many())).bytes(),
}, opened, "", verdict="unknown")  # fmt: skip
family("X203", "", {
    "fine": lambda: Zip().add(".format_version", b"1").add(".data/serialization_id", b"0" * 40).add(".storage_alignment", b"64").bytes(),
}, opened, verdict="inert")  # fmt: skip


def nemo(config: bytes, path: str = "model_config.yaml") -> bytes:
    """A NeMo archive with this configuration."""
    return tar_member(path, config) + tar_member("model_weights.ckpt", torch_zip(GOOD)) + TAR_END


family("X204", "YAML that names what a reader calls", {
    "target": lambda: nemo(b"a:\n  _target_: posix.system\n  _args_: ['true']\n"), "flow": lambda: nemo(b"{a: [{'_target_': x.y}]}"),
    "tag": lambda: nemo(b"a: !!python/object/apply:posix.system ['true']\n"), "handle": lambda: nemo(b"%TAG !p! tag:yaml.org,2002:python/\n---\na: !p!name:os.system ''\n"),
    "escaped": lambda: nemo(b'"\\x5ftarget_": x.y\n'), "other_file": lambda: nemo(b"_target_: x.y", "other.YML"), "merged": lambda: nemo(b"a: &a {_target_: x.y}\nb: {<<: *a}\n"),
}, opened, "CodeInArchive", verdict="would execute", suffix=".nemo")  # fmt: skip
family("X204", "", {
    "class": lambda: nemo(b"target: nemo.collections.asr.models.EncDecCTCModel\n"), "resolver": lambda: nemo(b"a: ${oc.env:HOME}\n"),
    "member": lambda: Zip().add("config.yaml", b"cls: x.y\n").bytes(),
}, opened, "CodeInArchive", verdict="unknown", suffix=".nemo")  # fmt: skip
family("X204", "", {
    "block": lambda: nemo(b"a: |\n  _target_: x.y\n"), "damaged": lambda: nemo(b"a: [\n"),
    "key": lambda: nemo(b"[a, b]: c\n"), "utf16": lambda: nemo("a: b".encode("utf-16")), "long": lambda: nemo(b"a: " + b"b" * (1 << 20)),
    "deep": lambda: nemo(b"[" * 100_000),
    # Where a comment ends by YAML 1.1, which PyYAML reads, and not by 1.2.
    **{
        f"{ord(end):x}_{key}": (lambda end=end, rest=rest: nemo(f"a: 1 # comment{end}{rest}\n".encode()))
        for end in "\u0085\u2028\u2029"
        for key, rest in {"tag": "b: !!python/object/apply:posix.system ['true']", "target": "target: x.y", "resolver": "b: ${oc.env:HOME}"}.items()
    },
}, opened, "", verdict="unknown", suffix=".nemo")  # fmt: skip
family(
    "X204",
    "",
    {"fine": lambda: nemo(b"rate: 16000\nlabels: [a, b]\nx: ${rate}\n")},
    opened,
    verdict="inert",
    suffix=".nemo",
)
family("X205", "a member of a tar archive that no reader is known for", {
    "tokenizer": lambda: tar_member("tokenizer.model", b"\n\x0e\n\x05<unk>") + tar_member("model_weights.ckpt", torch_zip(GOOD)) + TAR_END,
}, opened, "", verdict="unknown", suffix=".nemo")  # fmt: skip

CLASS = name("joblib.numpy_pickle.NumpyArrayWrapper")
STATE = {
    "subclass": name("numpy.ndarray"), "shape": many(integer(32)), "order": text("C"), "dtype": DTYPE, "allow_mmap": b"\x88",
    "numpy_array_alignment_bytes": integer(16),
}  # fmt: skip


def made_by(*made: bytes, state: bytes | None = None) -> Callable[[], bytes]:
    """A file whose wrapper is made in this way; behind the array is a call."""
    state = named(STATE) if state is None else state

    def build() -> bytes:
        return (
            b"\x80\x03](" + b"".join(made) + state + BUILD + b"\x03" + bytes(3) + bytes(256) + SYSTEM + b"e."
        )

    return build


EMPTY = b")"
family("X206", "a wrapper of joblib that is made in another way than joblib's", {
    "reconstructor": made_by(call("copyreg._reconstructor", CLASS, name("builtins.object"), b"N")),
    "reduced": made_by(CLASS + EMPTY + b"R"), "with_arguments": made_by(CLASS + many(*STATE.values()) + b"R"),
    "newobj_arguments": made_by(CLASS + many(b"N") + b"\x81"), "newobj_ex": made_by(CLASS + EMPTY + b"}\x92"),
    "instance": made_by(b"(ijoblib.numpy_pickle\nNumpyArrayWrapper\n"), "identity": made_by(
        call("torch.jit._pickle.restore_type_tag", CLASS + b")\x81", text("x"))),
    "as_a_value": made_by(CLASS + b"q\x050h\x05" + EMPTY + b"\x81h\x05\x860" + CLASS + EMPTY + b"\x81"),
}, unknown, "", suffix=".joblib")  # fmt: skip
FLAGS = call("numpy.dtype", text("f8"), b"\x89", b"\x88") + many(
    integer(3), text("<"), b"N", b"N", b"N", integer(-1), integer(-1), integer(63)) + BUILD  # fmt: skip


def objects_by_flags() -> bytes:
    """The flags of the dtype say that the array has objects, so joblib unpickles what follows in place of 32 numbers."""
    return b"\x80\x03](" + wrapped(32, FLAGS) + pickle(listed(SYSTEM)).ljust(260, b"\0") + b"e."


def mapped_objects() -> bytes:
    """An array of objects that says that it may be mapped."""
    return b"\x80\x03](" + wrapped(1, OBJECT, allow_mmap=b"\x88") + pickle(listed()) + b"e."


family("X207", "a wrapper of joblib whose dtype has other contents than its code says", {
    "mapped": mapped_objects,
    "size": lambda: b"\x80\x03](" + wrapped(4, numpy_dtype("S8", order="|")) + b"\x03" + bytes(3) + bytes(32) + b"e.",
}, unknown, "", verdict="unknown", suffix=".joblib")  # fmt: skip
family("X207", "", {"flags": objects_by_flags}, unknown, "", runs=("posix.system",), suffix=".joblib")
family("X207", "", {"fine": joblib}, unknown, "", verdict="inert", suffix=".joblib")
