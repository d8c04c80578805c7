"""`safe_open`: the API of `safetensors.safe_open` for every format that rustload reads, with the same classes of errors.

`surface` has the classes, `index` the indexing of slices, and `prefetch` the loader that reads and copies to the GPU in the
background. "The reference" is the safetensors package.
"""
