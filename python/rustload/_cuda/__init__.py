"""Tensors in the memory of NVIDIA GPUs: host-to-device (H2D) copies, and casts and transposes on the GPU.

`_rustload.Upload` reads the file, casts on the CPU and copies to the GPU. `split` decides what it copies: elements that go
directly into the result, and elements that go into a staging buffer on the GPU, from which the GPU casts, transposes or decodes
them; `packed` cuts quantized weights for that. `uploads` submits copies ahead of the consumer. `results` is the interface that
the other folders call. `gpu` has the protocol `Gpu`: one GPU as one framework sees it (allocator, current stream). No file here
imports a framework; `driver_gpu` is the `Gpu` of frameworks without an allocator and streams, and the other implementations are
in `_frameworks`.
"""
