"""The contents of a checkpoint: `describe` makes the document of `rustload info --json`, `text` shows it."""
