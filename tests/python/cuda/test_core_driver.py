"""The CUDA driver at run time: errors if it or a GPU is missing, and no driver call before a GPU is requested."""

import subprocess

from support import child

REFUSED = """
    from rustload import DeviceError, _rustload

    def refused(device=0):
        try:
            _rustload.upload(device, window=1 << 28, threads=None)
        except DeviceError as error:
            assert error.code == "Device"
            return str(error)
        raise AssertionError("it was not refused")
"""


def test_import_does_not_load_the_driver(tmp_path):
    """A library whose constructor ends the process is loaded by `cuda_info` and not by the import."""
    child("import rustload", env={"RUSTLOAD_LIBCUDA": "/nonexistent"})
    source = tmp_path / "bomb.c"
    source.write_text("#include <unistd.h>\n__attribute__((constructor)) static void f(void) { _exit(3); }\n")
    library = tmp_path / "bomb.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    env = {"RUSTLOAD_LIBCUDA": str(library)}
    child("import rustload, rustload.torch", env=env)
    assert child("import rustload\nrustload._rustload.cuda_info()", env=env, check=False).returncode == 3


def test_a_missing_driver_library_is_reported():
    out = child(
        REFUSED
        + """
    info = _rustload.cuda_info()
    assert not info["available"] and info["library"] is None and info["driver"] is None and info["devices"] == 0
    assert "/nonexistent/libcuda.so.1" in info["reason"]
    print(refused())
    assert refused().splitlines()[0] == info["reason"]
    """,
        env={"RUSTLOAD_LIBCUDA": "/nonexistent/libcuda.so.1"},
    ).stdout
    assert out.startswith("there is no CUDA driver: /nonexistent/libcuda.so.1")


def test_a_library_without_the_driver_functions_is_refused(tmp_path):
    source = tmp_path / "empty.c"
    source.write_text("int cuInit(unsigned flags) { return 0; }\n")
    library = tmp_path / "empty.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    out = child(REFUSED + "\n    print(refused())", env={"RUSTLOAD_LIBCUDA": str(library)}).stdout
    assert out == "the CUDA driver has no cuDriverGetVersion\n"


def test_cuda_info_reports_library_version_and_devices(on_fake, libcuda):
    code = """
        import fakecuda
        from rustload import _rustload
        print(_rustload.cuda_info())
        assert fakecuda.count("contexts") == 0 and fakecuda.count("cuInit") == 1
    """
    found = on_fake(code, FAKECUDA_DEVICES=3).stdout.strip()
    expected = {"available": True, "reason": None, "library": str(libcuda), "driver": "13.0", "devices": 3}
    assert found == str(expected)


def test_the_library_of_hip_is_used_by_its_names(on_fake, libhip, save):
    import torch

    path = save({"w": torch.arange(60_000.0).reshape(300, 200), "b": torch.ones(7, dtype=torch.bfloat16)})
    code = """
        import sys, ctypes, fakecuda, pytest, rustload
        from fakecuda import Request
        from rustload import _rustload
        info = _rustload.cuda_info()
        assert (info["available"], info["devices"], info["driver"]) == (True, 1, "6.3"), info
        upload = _rustload.upload(0, window=1 << 28, threads=None)
        tensors = list(rustload.open(sys.argv[1]).values())
        for request in (Request(), Request(dtype="float32")):
            ticket, into = fakecuda.submit(upload, tensors, request)
            upload.wait(ticket, stream=None, sync=True)
            assert {buffer.__dlpack_device__() for buffer in into} == {(10, 0)}
            for tensor, buffer in zip(tensors, into, strict=True):
                assert fakecuda.read(buffer) == fakecuda.expected(tensor, request)
        upload.close()
        for stream in (None, -1, 0, 0x7F0012345678):
            buffer.__dlpack__(stream=stream)
        for stream in (-2, 1, 2):
            with pytest.raises(BufferError, match="HIP"):
                buffer.__dlpack__(stream=stream)
        out = rustload.open(sys.argv[1], framework="dlpack")["w"].materialize("cuda")
        tensors[0].materialize(out=out)
        del into, buffer, out
        assert fakecuda.count("memory") == 0
    """
    on_fake(code, path, RUSTLOAD_LIBCUDA=libhip, FAKECUDA_VERSION=60_342_131)
    missing = REFUSED + "\n    print(refused())"
    assert on_fake(missing, RUSTLOAD_LIBCUDA=libhip, FAKECUDA_INIT=100).stdout.startswith(
        "the HIP driver finds no GPU ("
    )


def test_missing_devices_are_reported(on_fake):
    code = REFUSED + "\n    print(_rustload.cuda_info()['reason'])\n    print(refused())"
    for text, environment in {
        "the CUDA driver finds no GPU (CUDA_ERROR_NO_DEVICE)": {"FAKECUDA_INIT": 100},
        "cuInit failed: error 803": {"FAKECUDA_INIT": 803},
    }.items():
        assert on_fake(code, **environment).stdout == f"{text}\n{text}\n"
    assert on_fake(code, FAKECUDA_DEVICES=0).stdout == (
        "the CUDA driver finds no GPU\nthere is no CUDA device 0: there are 0\n"
    )


def test_a_driver_that_initializes_at_the_second_try_is_used(on_fake):
    on_fake(
        REFUSED
        + """
    import fakecuda
    assert refused() == "the CUDA driver finds no GPU (CUDA_ERROR_NO_DEVICE)"
    assert _rustload.cuda_info()["available"]
    _rustload.upload(0, window=1 << 28, threads=None).close()
    """,
        FAKECUDA_FAIL="cuInit:1",
    )


def test_a_wrong_device_index_is_refused_with_the_device_count(on_fake):
    code = REFUSED + "\n    print(refused(2))\n    print(_rustload.upload(1, window=0, threads=1).device)"
    assert on_fake(code, FAKECUDA_DEVICES=2).stdout == "there is no CUDA device 2: there are 2\n1\n"


def test_an_invalid_ring_setting_is_a_value_error(on_fake):
    code = """
        import pytest
        from rustload import _rustload
        with pytest.raises(ValueError, match="RUSTLOAD_RING=seven"):
            _rustload.upload(0, window=1 << 28, threads=1)
        import fakecuda
        assert fakecuda.alive()["registered"] == fakecuda.alive()["events"] == 0
    """
    on_fake(code, RUSTLOAD_RING="seven")


def test_a_forked_child_is_refused_and_calls_no_driver_function(on_fake, simple):
    """The child drops the parent's upload and buffers without a driver call."""
    on_fake(
        REFUSED
        + """
    import os, sys
    import fakecuda, rustload
    from fakecuda import Request

    tensors = list(rustload.open(sys.argv[1]).values())
    upload = _rustload.upload(0, window=1 << 28, threads=2)
    ticket, into = fakecuda.submit(upload, tensors, Request())
    names = list(fakecuda.functions())
    if not (pid := os.fork()):
        before = [fakecuda.count(name) for name in names]
        assert "forked" in refused()
        info = _rustload.cuda_info()
        assert not info["available"] and "forked" in info["reason"]
        for work in (
            lambda: upload.wait(ticket, stream=None, sync=True),
            lambda: fakecuda.submit(upload, tensors, Request(), into),
            lambda: upload.allocate(5),
            upload.rate,
        ):
            try:
                work()
            except DeviceError as error:
                assert "forked" in str(error)
            else:
                os._exit(1)
        upload.close()
        del upload, into
        assert before == [fakecuda.count(name) for name in names]
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    upload.wait(ticket, stream=None, sync=True)
    assert [fakecuda.read(buffer) for buffer in into] == [fakecuda.expected(t, Request()) for t in tensors]
    """,
        simple,
    )


def test_a_child_of_a_process_whose_other_code_used_cuda_is_told_about_the_fork(on_fake):
    """There cuInit returns CUDA_ERROR_NOT_INITIALIZED."""
    assert "forked" in on_fake(REFUSED + "\n    print(refused())", FAKECUDA_INIT=3).stdout


def test_freeing_memory_does_not_keep_the_interpreter(on_fake):
    """The driver waits for the GPU's work first, which may be a function of Python's."""
    on_fake(
        """
        import faulthandler, threading
        import fakecuda
        from rustload import _rustload
        faulthandler.dump_traceback_later(20, exit=True)
        upload = _rustload.upload(0, window=1 << 28, threads=1)
        for export in (lambda buffer: buffer, lambda buffer: buffer.__dlpack__()):
            kept = export(upload.allocate(5))
            fakecuda.hold_frees()
            threading.Timer(0.05, fakecuda.hold_frees, [False]).start()
            del kept
            assert fakecuda.count("memory") == 0
        """
    )


def test_forked_children_do_not_inherit_the_ring(on_fake):
    """MADV_DONTFORK: with copy-on-write, the parent could write to new pages while the device reads the pinned ones."""
    on_fake(
        """
        import re
        from rustload import _rustload
        def dontfork_ranges():
            # A range that is on huge pages in part has several lines, one after another.
            found = []
            with open("/proc/self/smaps") as maps:
                for line in maps:
                    if address := re.match("([0-9a-f]+)-([0-9a-f]+) ", line):
                        start, end = address.groups()
                    elif line.startswith("VmFlags") and " dc" in line:
                        if found and found[-1][1] == start:
                            start = found.pop()[0]
                        found.append((start, end))
            return found
        before = len(dontfork_ranges())
        upload = _rustload.upload(0, window=1 << 28, threads=1)
        assert len(dontfork_ranges()) == before + 1
        """
    )


def test_python_exits_cleanly_with_an_upload_in_flight(on_fake, simple):
    """Neither an upload in flight nor unfreed memory disturbs the exit, through the interpreter or by `os._exit`."""
    for end in ("pass", "import os; os._exit(0)", "raise SystemExit(0)"):
        on_fake(
            f"""
            import sys
            import fakecuda, rustload
            from rustload import _rustload
            upload = _rustload.upload(0, window=1 << 28, threads=2)
            kept = fakecuda.submit(upload, list(rustload.open(sys.argv[1]).values()), fakecuda.Request())
            {end}
            """,
            simple,
            FAKECUDA_DELAY=5000,
        )
