"""`safe_open`: the API of `safetensors.safe_open` for every format that rustload reads, with the same error messages.

`surface` has the classes, `index` the indexing of slices, `header_errors` the reference's messages for a broken header, and
`prefetch` the loader that reads and copies to the GPU in the background. "The reference" is the safetensors package.
"""
