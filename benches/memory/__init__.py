"""Memory over time while one model is loaded in today's ways and by rustload; `make memory` runs it."""
