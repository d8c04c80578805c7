"""Adapters to the array frameworks: each turns a core tensor and a request, or a buffer, into the framework's tensor.

`adapters` has the interface and chooses the framework. Each adapter module imports its framework, and is imported only when it is
needed. No file here imports `LazyTensor` or `Checkpoint`.
"""
