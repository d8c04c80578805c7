"""V: manifests, and files that differ from them."""

from attacks.registry import shown

HERE = "tests/python/test_manifest.py::"
shown(
    "V01",
    "a byte of a file is changed",
    "`ManifestMismatch` before anything that depends on it is returned",
    f"{HERE}test_no_flipped_byte_is_returned_and_what_it_does_not_touch_is",
)
shown(
    "V02",
    "pieces change places, or the file is cut, extended or replaced",
    "`ManifestMismatch`, or the bytes that were listed",
    f"{HERE}test_a_changed_file_is_an_error_of_the_read",
)
shown(
    "V03",
    "a file that is not listed",
    "`ManifestMissing`",
    f"{HERE}test_files_that_are_not_listed_are_refused",
)
shown(
    "V04",
    "a configuration of the quantization that is changed, removed or not listed",
    "`ManifestMismatch`, `FileNotFoundError`, not read",
    f"{HERE}test_the_configuration_beside_a_file_is_verified_too",
)
shown(
    "V05",
    "a manifest whose root digest, pieces, names, keys, numbers or algorithms are wrong",
    "`ManifestInvalid`",
    f"{HERE}test_a_manifest_that_lies_is_refused",
)
shown(
    "V06",
    "a manifest of more than 64 MiB, or of many pieces",
    "`ManifestInvalid`; linear time",
    f"{HERE}test_a_large_manifest_takes_linear_time",
)
shown(
    "V07",
    "a signed manifest whose signature nobody verified",
    "`ValueError` unless the caller says so",
    f"{HERE}test_a_bundle_is_refused_unless_its_signature_is_ignored",
)
shown(
    "V08",
    "random changes of files, manifests and the answers of stores: 10,000 flipped bits",
    "the bytes that were listed, or a code of these",
    "tests/python/test_manifest_fuzz.py::test_of_ten_thousand_flipped_bits_none_is_returned",
)
shown(
    "V09",
    "a changed file in the Hub's cache or a folder downloaded from it",
    "`ManifestMismatch`",
    "tests/python/test_manifest_hub.py::test_the_digests_of_the_hub_are_those_of_its_cache",
)
shown(
    "V10",
    "a file that a scan's policy does not list, or lists otherwise",
    "not scanned; the report does not pass",
    "tests/python/test_manifest_commands.py::test_a_policy_demands_what_a_manifest_lists",
)
