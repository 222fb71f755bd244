"""Authorization, patches, selectors, and the validation and verbs of particular kinds."""
