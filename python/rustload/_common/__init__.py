"""Shared helpers: limits, paths, glob patterns, arguments of several functions, memory, progress, terminal output.

No file here imports a framework, a tensor or a checkpoint; the only imports are `errors` and the extension.
"""
