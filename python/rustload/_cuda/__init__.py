"""Tensors in the memory of NVIDIA GPUs: what is uploaded where, and what the GPU does with it.

`_rustload.Upload` reads, casts and copies. Here is decided what it copies: straight into the result, or, where the GPU casts or
transposes, through a panel (`split`). `uploads` keeps copies going ahead of whoever takes the results, and `results` is what the
parts above call. A `Place` (`place`) is one GPU as one framework sees it. Nothing here knows a framework; `plain` is the place of
those that have no allocator or streams of their own, and the others' are in `_frameworks`.
"""
