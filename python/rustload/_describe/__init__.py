"""What a checkpoint holds: `describe` makes the document of `rustload info --json`, `text` shows it."""
