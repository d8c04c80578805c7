"""What all parts use: bounds, paths, name patterns, arguments that several verbs take, memory, progress, text for terminals.

Nothing here knows a framework, a tensor or an open checkpoint; `errors` and the extension are all that it stands on.
"""
