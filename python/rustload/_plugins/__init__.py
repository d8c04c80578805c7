"""Entry points of other programs. Each module imports nothing until its function is called, and little then."""
