"""Y: the Python binding."""

from attacks.pickles import FALSE, NONE, TRUE, binary, integer, many, mapped, number, tensor, text
from attacks.registry import Opens, family, shown
from attacks.zips import around

HERE, LIFETIME = "test_boundary.py::", "tests/python/test_lifetime.py::"
shown(
    "Y01",
    "a panic",
    "`InternalError`, counted as a bug",
    "tests/rust/panics.rs::a_panic_below_the_binding_is_an_internal_error",
)
shown(
    "Y02",
    "a failed allocation",
    "`MemoryError`",
    f"{HERE}test_y02_a_failed_allocation_is_memory_error",
)
shown(
    "Y03",
    "Ctrl-C",
    "`KeyboardInterrupt` within a tick",
    f"{HERE}test_y03_ctrl_c_interrupts_the_opening_of_a_file",
)
shown(
    "Y04",
    "a mapping whose checkpoint was deleted",
    "views keep it alive",
    f"{LIFETIME}test_a_result_outlives_handle_and_checkpoint",
)
shown(
    "Y05",
    "two threads on one file",
    "equal results",
    f"{LIFETIME}test_eight_threads_read_correct_values_of_one_file",
)
shown(
    "Y06",
    "a forked process",
    "equal results",
    f"{LIFETIME}test_a_fork_while_other_threads_materialize_does_not_hang",
)

NAN = number(float("nan"))


def preserved(ckpt) -> None:
    keys = list(ckpt.objects)
    assert keys[:5] == [1, 1.5, b"b", (1, "a"), None]
    assert keys[5] != keys[5]
    assert [type(key) for key in keys] == [int, float, bytes, tuple, type(None), float]


def collided(ckpt) -> None:
    """`{1: .., True: .., 1.0: ..}` is one item: the first key, the last value."""
    assert ckpt.objects == {1: "c", 0: "z"}
    assert [type(key) for key in ckpt.objects] == [int, bool]


family("Y07", "dict keys of every type, and equal keys", {
    "types": lambda: around(mapped(
        (integer(1), NONE), (number(1.5), NONE), (binary(b"b"), NONE), (many(integer(1), text("a")), NONE), (NONE, NONE), (NAN, NONE),
    ), protocol=3),
}, Opens("preserved", preserved))  # fmt: skip
family("Y07", "", {
    "equal": lambda: around(mapped(
        (integer(1), text("a")), (TRUE, text("b")), (number(1.0), text("c")), (FALSE, text("y")), (integer(0), text("z")),
    )),
}, Opens("collide as in CPython", collided), "DuplicateKey")  # fmt: skip
family(
    "Y07",
    "",
    {"nans": lambda: around(mapped((NAN, tensor()), (NAN, tensor())))},
    Opens("two keys, as in CPython", len),
)
shown(
    "Y08",
    "a path as `bytes`",
    "content, as everywhere: `UnknownFormat`",
    f"{HERE}test_y08_bytes_are_content_and_a_path_object_may_hold_bytes",
)
shown("Y09", "a file that is truncated while it is open", "owned results: `FileChanged`; views: SIGBUS, as documented",
      f"{HERE}test_y09_a_truncated_file_is_sigbus_for_a_view_and_an_error_for_an_owned_read")  # fmt: skip
