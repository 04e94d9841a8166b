"""The layers of the lake, with which the names of tables begin. The image needs this before it has any package."""

LAYERS = ("bronze", "silver", "gold")
